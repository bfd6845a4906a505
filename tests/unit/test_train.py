"""The training of one trial: its determinism, its checkpoints and its ends."""

from __future__ import annotations

import io
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isoloss import AdamW, Decoder, Evaluation, Linear, LowRank, Outcome, SpamLang, Steps, Stop, Verdict
from isoloss import WarmupStableDecay as Schedule
from isoloss.errors import UsageError
from isoloss.result import Result
from isoloss.study import Trial
from isoloss.train.loop import train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)

HEADS = {"linear": Linear(), "tied": Linear(tied=True), "low_rank": LowRank(rank=3)}


def trial(**changes: Any) -> Trial:
    parts = {
        "task": SpamLang(vocab_size=8, sequence_length=4),
        "model": Decoder(width=16, depth=1, attention_heads=2, kv_heads=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=0.03, weight_decay=0.1),
        "budget": Steps(14, batch_size=8),
        "evaluation": Evaluation(sequences=16, points=6),
    }
    return Trial(**{**parts, **changes})


def at(learning_rate: float, **changes: Any) -> Trial:
    return trial(optimizer=AdamW(learning_rate=learning_rate), budget=Steps(60, batch_size=8), **changes)


def numbers(result: Result) -> bytes:
    """All of a result that may not differ between two runs of one trial."""
    return replace(result, machine={}).to_bytes()


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_resuming_at_any_step_gives_the_same_bytes(head: Linear | LowRank) -> None:
    checkpoints: list[bytes] = []
    asked = trial(head=head)
    whole = train(asked, Settings(checkpoint_seconds=0), save=checkpoints.append)
    assert whole.curve.step == (0, 1, 2, 4, 7, 14)  # 14^(i/4) = 1, 1.9, 3.7, 7.2, 14, after 0
    assert len(checkpoints) == 13
    for step, checkpoint in enumerate(checkpoints, start=1):
        torch.manual_seed(step)
        resumed = train(asked, Settings(), checkpoint=checkpoint)
        assert resumed.machine["resumed_at"] == step
        assert numbers(resumed) == numbers(whole), f"resumed at step {step}"


def test_a_trial_that_was_interrupted_again_and_again_gives_the_same_bytes() -> None:
    asked = trial()
    whole = train(asked, Settings())

    class Interrupted(Exception):
        pass

    last: list[bytes | None] = [None]

    def save(data: bytes) -> None:
        last[0] = data
        raise Interrupted

    interruptions = 0
    while interruptions < 20:
        try:
            result = train(asked, Settings(checkpoint_seconds=0), checkpoint=last[0], save=save)
            break
        except Interrupted:
            interruptions += 1
    assert interruptions == 13
    assert numbers(result) == numbers(whole)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_trials_numbers_depend_on_the_trial_alone(head: Linear | LowRank) -> None:
    """Not on random states that other code left behind, nor on what was trained before in the same process."""
    first = train(trial(head=head), Settings())
    torch.manual_seed(987)
    np.random.seed(987)
    random.seed(987)
    train(at(0.1), Settings())
    second = train(trial(head=head), Settings())
    assert numbers(first) == numbers(second)
    assert numbers(first) != numbers(train(trial(head=head, replicate=1), Settings()))


def test_a_result_survives_its_file() -> None:
    result = train(trial(), Settings())
    assert Result.from_bytes(result.to_bytes()) == result
    assert result.key == trial().key
    assert result.trial == trial().canonical


def test_a_checkpoint_holds_tensors_and_plain_values_only() -> None:
    checkpoints: list[bytes] = []
    train(trial(), Settings(checkpoint_seconds=0), save=checkpoints.append)
    state = torch.load(io.BytesIO(checkpoints[4]), weights_only=True)
    assert state["key"] == trial().key
    assert state["step"] == 5
    assert state["curve"]["step"] == [0, 1, 2, 4]


def test_a_checkpoint_of_another_version_is_not_used() -> None:
    checkpoints: list[bytes] = []
    whole = train(trial(), Settings(checkpoint_seconds=0), save=checkpoints.append)
    state = torch.load(io.BytesIO(checkpoints[4]), weights_only=True)
    del state["format"]
    other = io.BytesIO()
    torch.save(state, other)
    again = train(trial(), Settings(), checkpoint=other.getvalue())
    assert again.machine["resumed_at"] == 0
    assert numbers(again) == numbers(whole)


def test_the_series_beside_the_loss_are_those_of_the_updates_between() -> None:
    points: list[dict[str, Any]] = []
    result = train(
        trial(optimizer=AdamW(learning_rate=0.03, schedule=Schedule(warmup=0.5, decay=0.5))),
        Settings(),
        report=points.append,
    )
    assert [point["step"] for point in points] == [0, 1, 2, 4, 7, 14]
    assert [point["loss"] for point in points] == list(result.curve.loss)
    assert points[0]["train_loss"] is points[0]["gradient_norm"] is points[0]["learning_rate"] is None
    # Seven steps of warm-up to 1, then 7/8, 6/8 … 1/8: the rate of the update before each point.
    expected = [0.03 * factor for factor in (1 / 7, 2 / 7, 4 / 7, 1.0, 1 / 8)]
    assert result.series["learning_rate"][1:] == pytest.approx(expected)


def test_the_training_loss_is_the_mean_and_the_gradient_norm_the_largest_since_the_last_point() -> None:
    every = train(trial(evaluation=Evaluation(sequences=16, points=16)), Settings()).series
    some = train(trial(), Settings())
    for place in range(1, 6):
        first, last = some.curve.step[place - 1], some.curve.step[place]
        losses, norms = every["train_loss"][first + 1 : last + 1], every["gradient_norm"][first + 1 : last + 1]
        assert some.series["train_loss"][place] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
        assert some.series["gradient_norm"][place] == pytest.approx(max(norms), rel=1e-6)


@pytest.mark.parametrize(
    ("learning_rate", "outcome"), [(0.03, Outcome.CONVERGED), (1e-3, Outcome.UNDERTRAINED), (1e3, Outcome.DIVERGED)]
)
def test_learning_rates_end_where_they_should(learning_rate: float, outcome: Outcome) -> None:
    result = train(at(learning_rate, evaluation=Evaluation(sequences=64, points=24)), Settings())
    assert Verdict(converged_below=0.05).judge(result.curve) == outcome
    assert all(math.isfinite(value) for value in (*result.curve.loss, *result.curve.standard_error))


def test_a_divergence_is_stopped_once_it_has_stayed_far_above_and_kept() -> None:
    asked = at(1e3, evaluation=Evaluation(sequences=16, points=24), stop=Stop(above_initial=3.0, for_share=0.25))
    result = train(asked, Settings())
    assert result.curve.ended == "above_initial"
    first = next(
        s for s, loss in zip(result.curve.step, result.curve.loss, strict=True) if loss > 3 * result.curve.loss[0]
    )
    warmup = 0.1 * asked.steps
    enough = [step for step in asked.evaluation.steps(asked.steps) if step >= max(first, warmup) + 0.25 * asked.steps]
    assert result.curve.step[-1] == enough[0]
    assert Result.from_bytes(result.to_bytes()) == result
    assert train(at(1e3, stop=Stop(above_initial=None)), Settings()).curve.ended == "budget"


def test_a_trial_that_only_rises_at_first_is_not_stopped() -> None:
    """The first batches of 4 teach 4 of 256 symbols and push all others down; left alone, the loss falls by 3 nats."""
    parts = {"task": SpamLang(vocab_size=256, sequence_length=3), "head": Linear(tied=True)}
    parts |= {"optimizer": AdamW(learning_rate=0.08), "budget": Steps(200, batch_size=4)}
    parts |= {"model": Decoder(width=16, depth=1), "evaluation": Evaluation(sequences=64)}
    alone = train(trial(**parts, stop=Stop(above_initial=None)), Settings()).curve
    assert alone.final_loss < alone.initial_loss - 3
    assert train(trial(**parts), Settings()).curve.ended == "budget"


@pytest.mark.parametrize("learning_rate", [1e6, 1e30, 1e300])
def test_a_learning_rate_that_overflows_ends_nonfinite_with_a_finite_curve(learning_rate: float) -> None:
    result = train(at(learning_rate), Settings())
    assert result.curve.ended == "nonfinite"
    assert Verdict().judge(result.curve) == Outcome.NONFINITE
    assert result.curve.step[0] == 0
    series = [*result.curve.loss, *result.curve.standard_error, *sum(result.series.values(), ())]
    assert all(value is None or math.isfinite(value) for value in series)
    assert math.isfinite(result.curve.capped_excess)
    assert Result.from_bytes(result.to_bytes()) == result


def test_a_gradient_that_overflows_between_two_evaluations_is_found() -> None:
    """No evaluation lies between steps 32 and 1,000: the look at the gradients every few steps must end it."""
    saved: list[bytes] = []
    asked = trial(
        optimizer=AdamW(learning_rate=1e-3, schedule=Schedule(warmup=0.0)),
        budget=Steps(1000, batch_size=8),
        evaluation=Evaluation(sequences=16, points=4),
    )
    assert asked.evaluation.steps(1000) == [0, 1, 32, 1000]

    class Reached(Exception):
        pass

    def save(data: bytes) -> None:
        state = torch.load(io.BytesIO(data), weights_only=True)
        if state["step"] == 33:
            state["model"]["head.weight_VM"].fill_(float("nan"))
            buffer = io.BytesIO()
            torch.save(state, buffer)
            saved.append(buffer.getvalue())
            raise Reached

    with pytest.raises(Reached):
        train(asked, Settings(checkpoint_seconds=0), save=save)
    steps: list[int] = []
    result = train(
        asked,
        Settings(checkpoint_seconds=0),
        checkpoint=saved[0],
        save=lambda data: steps.append(torch.load(io.BytesIO(data), weights_only=True)["step"]),
    )
    assert result.curve.ended == "nonfinite"
    assert result.curve.step == (0, 1, 32)
    assert 33 < max(steps) < 33 + 64


def test_bfloat16_trains_close_to_float32() -> None:
    exact, coarse = (train(at(0.01), Settings(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert coarse.machine["dtype"] == "bfloat16"
    assert coarse.curve.loss != exact.curve.loss
    # bfloat16 keeps 8 bits: a relative step of 1/256.
    assert coarse.curve.initial_loss == pytest.approx(exact.curve.initial_loss, rel=1 / 256)
    assert coarse.curve.loss[3] == pytest.approx(exact.curve.loss[3], rel=0.05)
    assert coarse.curve.final_loss < 0.5 * coarse.curve.initial_loss


@pytest.mark.slow
def test_a_compiled_model_trains_as_an_eager_one() -> None:
    eager, compiled = (train(trial(), Settings(compile=compile)) for compile in (False, True))
    assert compiled.machine["compile"] is True
    np.testing.assert_allclose(compiled.curve.loss, eager.curve.loss, rtol=1e-4)


def test_a_batch_that_the_workers_cannot_share_evenly_is_refused() -> None:
    with pytest.raises(UsageError, match="8 sequences is not divisible by 3 workers"):
        train(trial(), Settings(), Workers(rank=0, count=3))
