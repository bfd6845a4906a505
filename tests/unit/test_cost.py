"""Predicted cost against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, LowRank, SpamLang, Steps
from isoloss.outcome import Curve
from isoloss.result import Result
from isoloss.run.cost import (
    ASSUMED,
    Calibration,
    Costs,
    Measured,
    Memory,
    Speed,
    activation_bytes,
    evaluation_flops,
    fit,
    flops,
    memory_bytes,
    seconds,
    size_of,
    update_flops,
    whole_budgets,
)
from isoloss.run.ledger import Ledger
from isoloss.study import Study, Trial


def trial(head: Linear | LowRank = Linear(), steps: int = 10, batch: int = 3, rate: float = 1e-3) -> Trial:  # noqa: B008
    return Trial(
        task=SpamLang(vocab_size=100, sequence_length=5),
        model=Decoder(width=8, depth=1, attention_heads=1),
        head=head,
        optimizer=AdamW(learning_rate=rate),
        budget=Steps(steps, batch_size=batch),
        evaluation=Evaluation(sequences=2, points=4),
    )


def calibration(*trials: Trial, speed: Speed, memory: Memory = Memory(1e7, 1.25)) -> Calibration:  # noqa: B008
    """What would be measured of such trials on a machine of exactly this speed and memory."""
    cells = [
        Measured(
            name=one.head.label,
            size=size_of(one),
            parameters=one.parameters,
            blocks=one.model.depth + 2,
            update_flops=update_flops(one),
            evaluation_flops=evaluation_flops(one),
            activation_bytes=activation_bytes(one, "cpu"),
            setup_seconds=speed.setup_seconds,
            update_seconds=(one.model.depth + 2) * speed.block_seconds + update_flops(one) / speed.flops_per_second,
            evaluation_seconds=speed.evaluation_seconds + evaluation_flops(one) / speed.flops_per_second,
            memory_bytes=memory.base_bytes + 16 * one.parameters + memory.per_activation * activation_bytes(one, "cpu"),
        )
        for one in trials
    ]
    return Calibration({"device": "cpu"}, "cpu", "2.13.0", "30 November 2026", 3 * 10**8, tuple(cells))


def test_flops_by_hand() -> None:
    # Backbone: attention 4 * 8 * 8 = 256, MLP 3 * 8 * 24 = 576, norms 3 * 8 = 24.
    # Attention over 4 positions: 2 * 8 * 4.
    backbone, attention = 256 + 576 + 24, 64
    tokens, measured = 10 * 3 * 4, 4 * 2 * 4  # evaluated after steps 0, 1, 3 and 10
    for head, parameters in ((Linear(), 800), (Linear(tied=True), 800), (LowRank(rank=2), 2 * 108)):
        per_token = backbone + attention + parameters
        assert flops(trial(head)) == per_token * (6 * tokens + 2 * measured)


def test_a_speed_is_found_again_from_the_times_it_gives() -> None:
    true = Speed(0.004, 3e9)
    trials = [trial(steps=steps) for steps in (10, 100, 1000)] + [trial(LowRank(rank=8), steps=500)]
    found = fit([(one, seconds(one, true)) for one in trials], "cpu")
    assert found.step_seconds == pytest.approx(0.004, rel=1e-6)
    assert found.flops_per_second == pytest.approx(3e9, rel=1e-6)
    assert found.measured == 4


def test_without_finished_trials_the_speed_is_an_assumption() -> None:
    assert fit([], "cpu") is ASSUMED["cpu"]


MACHINE = Speed(0.0, 3e9, 3, block_seconds=0.004, evaluation_seconds=0.002, setup_seconds=0.05)


def test_activations_by_hand() -> None:
    # A block keeps 8 * 8 + 4 * 24 = 160 floats a token. 300 sequences of 4 positions, and their 100 logits each.
    assert activation_bytes(trial(batch=300), "cpu") == 4 * 1200 * (160 + 100)
    # A chunk of logits holds 8 MiB at most; micro-batches are all that is held at once.
    assert activation_bytes(trial(batch=30_000), "cpu") == 4 * 120_000 * 160 + 2**23
    assert activation_bytes(trial(batch=30_000), "cuda") == 4 * 120_000 * (160 + 100)
    assert activation_bytes(trial(batch=30_000), "cpu", micro_batch=300) == 4 * 1200 * (160 + 100)
    # Two held-out sequences are more than one trained one.
    assert activation_bytes(trial(batch=1), "cpu") == 4 * 8 * (160 + 100)


def test_memory_is_that_of_adamw_and_activations() -> None:
    parameters = 800 + 856 + 800  # embedding, backbone, head
    assert memory_bytes(trial(batch=300), Memory(5e6, 2.0), "cpu") == 5e6 + 16 * parameters + 2 * 4 * 1200 * 260


def test_sizes_are_shared_by_trials_that_cost_the_same_an_update() -> None:
    assert size_of(trial()) == size_of(trial(steps=99, rate=1e-1))
    assert len({size_of(one) for one in (trial(), trial(batch=4), trial(LowRank(rank=2)), trial(LowRank(rank=3)))}) == 4


def test_a_calibration_finds_again_what_it_measured_and_foretells_the_rest() -> None:
    memory = Memory(1e7, 1.25)
    measured = calibration(*(trial(batch=batch) for batch in (3, 300, 3000)), speed=MACHINE, memory=memory)
    found = measured.speed
    assert (found.block_seconds, found.flops_per_second, found.measured) == (
        pytest.approx(0.004, rel=1e-6), pytest.approx(3e9, rel=1e-6), 3,
    )  # fmt: skip
    assert (found.evaluation_seconds, found.setup_seconds) == (pytest.approx(0.002, rel=1e-6), 0.05)
    assert measured.error < 1e-9
    assert (measured.memory.base_bytes, measured.memory.per_activation) == pytest.approx((1e7, 1.25), rel=1e-6)
    for one in (trial(batch=300, steps=70), trial(LowRank(rank=8), batch=1000, steps=50)):
        # By hand: its updates, its evaluations and its start.
        evaluations = len(one.evaluation.steps(one.steps))
        expected = 0.05 + 3 * 0.004 * one.steps + 0.002 * evaluations + flops(one) / 3e9
        assert measured.seconds(one) == pytest.approx(expected, rel=1e-6)
        assert measured.memory_bytes(one) == pytest.approx(memory_bytes(one, memory, "cpu"), rel=1e-6)


def test_a_size_that_was_measured_is_not_left_to_the_fit() -> None:
    slow, others = trial(LowRank(rank=8)), [trial(batch=batch) for batch in (3, 300, 3000)]
    slower = calibration(slow, speed=Speed(0.0, 3e9, block_seconds=0.4), memory=Memory(9e7, 1.25)).cells
    measured = calibration(*others, speed=MACHINE)
    both = Calibration(**{**vars(calibration(*others, speed=MACHINE)), "cells": (*slower, *measured.cells)})
    assert both.seconds(slow) == pytest.approx(10 * 3 * 0.4 + flops(slow) / 3e9)
    assert both.memory_bytes(slow) == slower[0].memory_bytes
    assert both.error > 0.5
    assert measured.seconds(slow) < 0.2


def test_finished_trials_say_better_than_a_calibration_and_that_better_than_an_assumption() -> None:
    small, large, other = trial(), trial(batch=300), trial(LowRank(rank=8), batch=100)
    costs = Costs("cpu")
    assert (costs.known, costs.source) == (False, "an assumed cpu")
    assert costs.seconds(small) == seconds(small, ASSUMED["cpu"])
    costs = Costs("cpu", calibration(small, large, speed=MACHINE))
    assert (costs.known, costs.source) == (True, "a calibration of 2 cells on cpu, 30 November 2026")
    alone = {one: costs.seconds(one) for one in (small, large, other)}
    # Beside other slots, trials take 1.5 times as long as the calibrated cell did alone.
    for factor in (1.4, 1.5, 1.9):
        costs.learn(small, factor * alone[small])
    assert costs.seconds(small) == pytest.approx(1.5 * alone[small])
    assert costs.seconds(large) == pytest.approx(1.5 * alone[large])
    assert costs.seconds(other) == pytest.approx(1.5 * alone[other])
    assert costs.source == "3 finished trials and a calibration of 2 cells on cpu, 30 November 2026"


def test_only_whole_budgets_at_one_go_tell_what_trials_take(tmp_path: Path) -> None:
    rates = (1e-4, 1e-3, 1e-2, 1e-1)
    trials = [trial(rate=rate) for rate in rates]
    ledger = Ledger(tmp_path)
    study = Study(
        name="cost", question="?", axes={"optimizer.learning_rate": Choice(*rates)},
        **{name: getattr(trials[0], name) for name in ("task", "model", "head", "optimizer", "budget", "evaluation")},
    )  # fmt: skip
    with ledger.driver(study, {"device": "cpu"}):
        for one, ended, resumed_at, device in zip(
            trials,
            ("budget", "nonfinite", "budget", "budget"),
            (0, 0, 5, 0),
            ("cpu", "cpu", "cpu", "cuda"),
            strict=True,
        ):
            curve = Curve((0, 10), (4.0, 1.0), (0.1, 0.1), 0.0, ended)
            machine = {"seconds": 7.0, "resumed_at": resumed_at, "device": device}
            ledger.finish(Result(one.key, one.canonical, curve, {}, machine))
    assert list(whole_budgets(ledger, trials, "cpu")) == [(trials[0], 7.0)]
    assert list(whole_budgets(ledger, trials, "cuda")) == [(trials[3], 7.0)]
