"""Tokens-to-loss ratios of curves whose crossing is known in closed form."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import t

from isoloss import (
    AdamW,
    Choice,
    Curve,
    Decoder,
    Log,
    LowRank,
    Prepared,
    Random,
    Size,
    SpamLang,
    Study,
    Text,
    Tokens,
    Verdict,
)  # fmt: skip
from isoloss.analysis.censored import censored_mean
from isoloss.analysis.tokens_to_loss import COLUMNS, first_step_below, tokens_to_loss
from isoloss.report.terminal import terminal_map

STEPS = (0, 1, 10, 100, 1000)

STUDY = Study(
    name="ratio",
    question="How many times faster?",
    task=Text(
        data=Prepared(name="web", bytes=300, sizes=(Size(vocab_size=300, tokens=100, held_out_tokens=10),)),
        vocab_size=300,
        sequence_length=4,
    ),
    model=Decoder(width=16, depth=1),
    head=LowRank(rank=2),
    optimizer=AdamW(learning_rate=1e-3),
    budget=Tokens(16_000, batch_size=4),
    axes={"head.rank": Choice(2, 8, 16), "optimizer.learning_rate": Choice(1e-3, 1e-2)},
    replicates=3,
    verdict=Verdict(converged_below=2.0),
)


def power_law(speed: float) -> Curve:
    """A loss that falls by 1 a decade of steps: at ``speed`` times the steps it is where speed 1 would be."""
    loss = tuple(8.0 - math.log10(max(step, 1) * speed) for step in STEPS)
    return Curve(STEPS, loss, (0.01,) * len(STEPS), 0.0)


def study_of(speeds: dict[tuple[int, float, int], float]) -> tuple[pd.DataFrame, dict[str, Curve]]:
    """Return the trials' table and curves of (rank, learning rate, replicate) that learn at these speeds."""
    rows: list[dict[str, Any]] = []
    curves = {}
    for number, ((rank, rate, replicate), speed) in enumerate(speeds.items()):
        curve = curves[f"k{number}"] = power_law(speed)
        rows.append(
            {
                "key": f"k{number}", "head.rank": rank, "optimizer.learning_rate": rate, "replicate": replicate,
                "outcome": "undertrained", "final_loss": curve.final_loss, "final_excess": curve.final_excess,
                "capped_excess": curve.capped_excess, "initial_loss": curve.initial_loss, "steps": 1000,
                "budget_steps": 1000, "text_bytes": 48_000.0, "tokens": 16_000, "floor": curve.floor,
            }
        )  # fmt: skip
    return pd.DataFrame(rows), curves


def test_a_crossing_lies_on_the_line_over_the_logarithm_of_the_step() -> None:
    curve = power_law(1.0)
    for step in (1.0, 3.0, 10.0, 31.0, 999.0):
        assert first_step_below(curve, 8.0 - math.log10(step)) == pytest.approx(step, rel=1e-9)
    assert first_step_below(curve, 4.9) is None
    assert first_step_below(curve, 9.0) == 1.0


def test_speeds_come_back_as_ratios_with_students_interval() -> None:
    """Rank 16 at its better rate learns 4, 5 and 6 times as fast as rank 2 at its own, pair by pair."""
    speeds = {(2, 1e-3, r): 1.0 for r in range(3)} | {(2, 1e-2, r): 0.5 for r in range(3)}
    speeds |= {(16, 1e-3, r): 2.0 for r in range(3)} | {(16, 1e-2, r): 4.0 + r for r in range(3)}
    speeds |= {(8, 1e-3, 0): 3.0, (8, 1e-3, 1): 0.9, (8, 1e-3, 2): 3.0}
    table, curves = study_of(speeds)
    found = tokens_to_loss(STUDY, table, curves.__getitem__).set_index("arm")
    assert set(found["reference"]) == {2}
    best = found.loc[16]
    assert (best["learning_rate"], best["reference_learning_rate"], best["reached"]) == (1e-2, 1e-3, 3)
    logs = [-math.log(4), -math.log(5), -math.log(6)]
    mean = sum(logs) / 3
    half = t.ppf(0.975, 2) * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2 / 3)
    expected = [math.exp(mean), math.exp(mean - half), math.exp(mean + half)]
    assert [best["ratio"], best["low"], best["high"]] == pytest.approx(expected, rel=1e-9)
    assert (best["censored"], best["at_least"], best["unit"]) == (0, pytest.approx(best["ratio"]), "bytes")


def both_rates(speeds: dict[tuple[int, int], float]) -> dict[tuple[int, float, int], float]:
    """Return these speeds, of (rank, replicate), for both learning rates."""
    return {(rank, rate, i): speed for (rank, i), speed in speeds.items() for rate in (1e-3, 1e-2)}


def test_replicates_that_never_get_there_bound_the_ratio() -> None:
    """Rank 8 gets there twice, at ratios of 1/4 and 1/2; its third replicate is at its end slower than rank 2."""
    speeds = {(2, r): 1.0 for r in range(3)} | {(8, 0): 4.0, (8, 1): 2.0, (8, 2): 0.9}
    table, curves = study_of(both_rates(speeds))
    found = tokens_to_loss(STUDY, table, curves.__getitem__).iloc[0]
    assert (found["arm"], found["reached"], found["censored"], found["replicates"]) == (8, 2, 1, 3)
    mean, interval = censored_mean(np.log([1 / 4, 1 / 2]), np.array([0.0]))
    assert found[["ratio", "low", "high"]].tolist() == pytest.approx(np.exp([mean, *interval]).tolist(), rel=1e-6)
    assert found["at_least"] == pytest.approx((1 / 8) ** (1 / 3))
    assert found["low"] < found["at_least"] < found["ratio"] < found["high"]


def test_a_reference_has_learned_something() -> None:
    """Rank 2 diverges in one replicate: the worst arm that learned is rank 8, and rank 2 is censored at its budget."""
    speeds = {(2, 0): 1.0, (2, 1): 1.0, (8, 0): 2.0, (8, 1): 2.0}
    table, curves = study_of(both_rates(speeds))
    lost = (table["head.rank"] == 2) & (table["replicate"] == 0)
    table.loc[lost, "capped_excess"] = table.loc[lost, "initial_loss"]
    table.loc[lost, ["steps", "text_bytes"]] = 10, 480.0
    for key in table["key"][lost]:
        curves[key] = Curve(STEPS[:3], curves[key].loss[:3], (0.01,) * 3, 0.0, "above_initial")
    found = tokens_to_loss(STUDY, table, curves.__getitem__).iloc[0]
    assert (found["arm"], found["reference"], found["reached"], found["censored"]) == (2, 8, 0, 2)
    assert found["at_least"] == pytest.approx(1.0)
    assert found[["ratio", "low", "high"]].isna().all()
    table["capped_excess"] = table["initial_loss"]
    assert not len(tokens_to_loss(STUDY, table, curves.__getitem__)), "no arm learned"


def test_a_task_without_text_counts_tokens_above_its_floor() -> None:
    study = STUDY.model_copy(update={"task": SpamLang(vocab_size=16, sequence_length=4)})
    table, curves = study_of(both_rates({(2, 0): 1.0, (2, 1): 1.0, (8, 0): 8.0, (8, 1): 2.0}))
    table = table.drop(columns="text_bytes")
    for key in table["key"][table["head.rank"] == 8]:
        # Arms may have different floors: what an arm must reach is the reference's loss above its own.
        curves[key] = Curve(STEPS, tuple(loss + 0.5 for loss in curves[key].loss), (0.01,) * len(STEPS), 0.5)
    found = tokens_to_loss(study, table, curves.__getitem__).iloc[0]
    assert (found["arm"], found["ratio"], found["unit"]) == (8, pytest.approx(1 / 4), "tokens")


def test_arms_are_compared_once_every_rate_has_a_trial_on_a_grid() -> None:
    table, curves = study_of(both_rates({(2, 0): 1.0, (8, 0): 2.0, (16, 0): 4.0}))
    half = table[(table["head.rank"] != 16) | (table["optimizer.learning_rate"] == 1e-2)]
    assert tokens_to_loss(STUDY, half, curves.__getitem__)["arm"].tolist() == [8]
    axes = {"head.rank": Choice(2, 8, 16), "optimizer.learning_rate": Log(1e-4, 1e-1)}
    scattered = STUDY.model_copy(update={"axes": axes, "search": Random(cells=9)})
    assert not len(tokens_to_loss(scattered, table, curves.__getitem__))
    empty = tokens_to_loss(STUDY, table.iloc[:0], curves.__getitem__)
    assert list(empty) == list(COLUMNS)
    assert not len(tokens_to_loss(STUDY.model_copy(update={"axes": {}}), table, curves.__getitem__))


def test_ratios_are_told_in_the_terminal() -> None:
    table, curves = study_of(both_rates({(2, 0): 1.0, (16, 0): 4.0}))
    ratios = tokens_to_loss(STUDY, table, curves.__getitem__)
    out = io.StringIO()
    counts = {"tokens": 1, "budget_steps": 1000, "standard_error": 0.01, "floor": 0.0, "ended": "budget"}
    terminal_map(STUDY, table.assign(**counts), Console(file=out, width=120), ratios=ratios)
    assert "head rank 16 reaches the final loss of head rank 2 with 0.25 of its training." in out.getvalue()
    assert "median loss in bits per byte" in out.getvalue().replace("\n", " ")


def test_arms_at_one_learning_rate_are_compared_and_told_too() -> None:
    study = STUDY.model_copy(update={"axes": {"head.rank": STUDY.axes["head.rank"]}})
    table, curves = study_of({(2, 1e-3, 0): 1.0, (16, 1e-3, 0): 5.0})
    table = table.drop(columns="optimizer.learning_rate")
    ratios = tokens_to_loss(study, table, curves.__getitem__)
    assert ratios["ratio"].tolist() == pytest.approx([1 / 5])
    out = io.StringIO()
    counts = {"tokens": 1, "budget_steps": 1000, "standard_error": 0.01, "floor": 0.0, "ended": "budget"}
    terminal_map(study, table.assign(**counts), Console(file=out, width=200), ratios=ratios)
    assert "head rank 16 reaches the final loss of head rank 2 with 0.2 of its training." in out.getvalue()
