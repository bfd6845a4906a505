"""Predicted cost against counts made by hand."""

from __future__ import annotations

import pytest

from isoloss import AdamW, Decoder, Evaluation, Linear, LowRank, SpamLang, Steps
from isoloss.run.cost import ASSUMED, Speed, fit, flops, seconds
from isoloss.study import Trial


def trial(head: Linear | LowRank = Linear(), steps: int = 10) -> Trial:  # noqa: B008
    return Trial(
        task=SpamLang(vocab_size=100, sequence_length=5),
        model=Decoder(width=8, depth=1, attention_heads=1),
        head=head,
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(steps, batch_size=3),
        evaluation=Evaluation(sequences=2, points=4),
    )


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
