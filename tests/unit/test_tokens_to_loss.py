"""Tokens-to-loss ratios of curves whose crossing is known in closed form."""

from __future__ import annotations

import io
import math
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import t

from isoloss import AdamW, Choice, Curve, Decoder, LowRank, Prepared, Size, Study, Text, Tokens, Verdict
from isoloss.analysis.tokens_to_loss import first_step_below, tokens_to_loss
from isoloss.report.bodies import ratios_body
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
                "text_bytes": 48_000.0,
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
    never = found.loc[8]
    assert (never["reached"], never["replicates"]) == (2, 3)
    assert math.isnan(never["ratio"])


def test_ratios_are_told_in_the_terminal_and_on_the_page() -> None:
    table, curves = study_of({(2, 1e-3, 0): 1.0, (16, 1e-3, 0): 4.0})
    ratios = tokens_to_loss(STUDY, table, curves.__getitem__)
    out = io.StringIO()
    counts = {"tokens": 1, "budget_steps": 1000, "standard_error": 0.01, "floor": 0.0, "ended": "budget"}
    terminal_map(STUDY, table.assign(**counts), Console(file=out, width=120), ratios=ratios)
    assert "head rank 16 reaches the final loss of head rank 2 with 0.25 of its training." in out.getvalue()
    assert "median loss in bits per byte" in out.getvalue().replace("\n", " ")
    assert "<td>0.25</td><td>–</td><td>1 of 1</td>" in ratios_body(STUDY, ratios)


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
