"""Tokens-to-loss ratios: how much less one arm of a study trains to reach the loss at which another ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import records, split
from isoloss.outcome import Curve
from isoloss.study import Study

COLUMNS = (
    "arm",
    "reference",
    "learning_rate",
    "reference_learning_rate",
    "replicates",
    "reached",
    "ratio",
    "low",
    "high",
)


def tokens_to_loss(study: Study, trials: pd.DataFrame, curve_of: Callable[[str], Curve]) -> pd.DataFrame:
    """Return how many times the training of the worst arm each other arm needs to reach the worst arm's final loss.

    Arms are the values of the map's axis down, each at the learning rate of its lowest median loss; the worst is the
    one whose median is highest there; arms are compared within each combination of the other axes, which the table
    holds too. The amount is counted in bytes of text, which at one vocabulary is the ratio of tokens, too (Godey &
    Artzi 2026: a sixteenth). ``ratio`` is the geometric mean over the replicates that both arms have, ``low`` and
    ``high`` its 95 % interval by Student's t over their logarithms (NaN for one replicate); all three are NaN where
    some replicate never reaches that loss, and ``reached`` counts those that do. The table is empty where the size of
    the corpus is not known. Curves are read as straight lines
    over the logarithm of the step, between evaluations.
    """
    down = study.map_axes[1]
    rows: list[dict[str, Any]] = []
    others = tuple(path for path in study.axes if path not in (down, LEARNING_RATE))
    if "text_bytes" in trials and down != LEARNING_RATE:
        for values, group in split(study, trials, others):
            arms = {value: _best(arm) for value, arm in group.groupby(down, sort=False)}
            if len(arms) < 2:
                continue
            worst = max(arms, key=lambda value: arms[value][1])
            rows += [
                {**values, **_compared(value, arms[value][0], worst, arms[worst][0], curve_of)}
                for value in arms
                if value != worst
            ]
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


def _best(arm: pd.DataFrame) -> tuple[list[dict[str, Any]], float]:
    """Return an arm's trials at the learning rate of its lowest median loss, and that median."""
    at = [group for _, group in arm.groupby(LEARNING_RATE)] if LEARNING_RATE in arm else [arm]
    best = min(at, key=lambda group: median(group["capped_excess"]))
    return list(records(best)), float(median(best["capped_excess"]))


def _compared(
    value: Any,
    arm: list[dict[str, Any]],
    worst: Any,
    reference: list[dict[str, Any]],
    curve_of: Callable[[str], Curve],
) -> dict[str, Any]:
    of_reference = {row["replicate"]: row for row in reference}
    pairs = [(row, of_reference[row["replicate"]]) for row in arm if row["replicate"] in of_reference]
    logarithms = []
    for row, against in pairs:
        step = first_step_below(curve_of(row["key"]), against["final_loss"])
        if step is not None:
            trained = step * row["text_bytes"] / row["steps"]
            logarithms.append(math.log(trained / against["text_bytes"]))
    whole = bool(pairs) and len(logarithms) == len(pairs)
    centre, half = _interval(logarithms) if whole else (math.nan, math.nan)
    return {
        "arm": value,
        "reference": worst,
        "learning_rate": arm[0].get(LEARNING_RATE),
        "reference_learning_rate": reference[0].get(LEARNING_RATE),
        "replicates": len(pairs),
        "reached": len(logarithms),
        "ratio": math.exp(centre),
        "low": math.exp(centre - half),
        "high": math.exp(centre + half),
    }


def _interval(values: list[float]) -> tuple[float, float]:
    """Return mean and half the width of the 95 % interval of Student's t; NaN for one value."""
    from scipy.stats import t

    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, math.nan
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, float(t.ppf(0.975, count - 1)) * math.sqrt(variance / count)


def first_step_below(curve: Curve, loss: float) -> float | None:
    """Return the step at which a curve first reaches ``loss``, a fraction between evaluations; None if it never does.

    A loss that the curve starts at or below counts as reached by one update.
    """
    for i, found in enumerate(curve.loss):
        if found <= loss:
            if i == 0:
                return 1.0
            share = (curve.loss[i - 1] - loss) / (curve.loss[i - 1] - found)
            before, after = math.log(max(curve.step[i - 1], 1)), math.log(curve.step[i])
            return math.exp(before + share * (after - before))
    return None
