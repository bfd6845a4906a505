"""Tokens-to-loss ratios: how much less one arm of a study trains to reach the loss at which another ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from isoloss.analysis.censored import censored_mean
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.statistics import NONE, student_interval
from isoloss.analysis.surface import records, split
from isoloss.analysis.tuning import at_best_rate, on_grid
from isoloss.config.tasks import Text
from isoloss.outcome import Curve
from isoloss.study import Study

COLUMNS = (
    *("arm", "reference", "learning_rate", "reference_learning_rate", "replicates", "reached", "censored"),
    *("ratio", "low", "high", "at_least", "unit"),
)

DEFINITION = (
    "The ratio is what an arm has trained on when its held-out loss first reaches the final loss of the worst arm that "
    "learned anything, over all that this one trained on: bytes of text, or tokens where the task is no text (Godey & "
    "Artzi 2026); each arm at the learning rate of its lowest median loss, the faster one amid its schedule. "
    "It is the geometric mean over replicates, with a 95 % interval of the logarithms by Student's t. Replicates that "
    "never get there are censored, their ratio being more than all that they trained on; mean and interval are then "
    "those of censored normal logarithms by profile likelihood (Tobin 1958), from two replicates on that do get there. "
    "at_least is the geometric mean with censored ratios at their bounds."
)


def tokens_to_loss(study: Study, trials: pd.DataFrame, curve_of: Callable[[str], Curve]) -> pd.DataFrame:
    """Return how many times the training of the worst arm each other arm needs to reach the worst arm's final loss.

    Arms are the values of the map's axis down, each at the learning rate of its lowest median loss, once every listed
    rate has a finished trial; the worst is the one whose median is highest there, among those that end below their
    initial loss in all replicates. Arms are compared within each combination of the other axes, which the table holds
    too. The amount is counted in bytes of a text, which at one vocabulary is the ratio of tokens, too (Godey & Artzi
    2026: a sixteenth), and in scored tokens of other tasks: ``unit`` says which.

    ``ratio`` is the geometric mean over the ``replicates`` that both arms have, ``low`` and ``high`` its 95 % interval
    by Student's t over their logarithms (NaN for one replicate). ``reached`` counts the replicates that reach that
    loss; the others are ``censored``: the ratio of such a one exceeds its whole budget over the reference's training.
    Then the three are those of ``censored.censored_mean`` of the logarithms (NaN where fewer than two reach it).
    ``at_least`` is the geometric mean with censored ratios at their bounds: the ratio itself where none is.

    The table is empty where a search scatters trials along an axis, and where the size of a text is not known. Curves
    are read as straight lines over the logarithm of the step, between evaluations.
    """
    rows: list[dict[str, Any]] = []
    down = study.map_axes[1] if study.axes else None
    others = tuple(path for path in study.axes if path not in (down, LEARNING_RATE))
    unit = "text_bytes" if isinstance(study.task, Text) else "tokens"
    if down not in (None, LEARNING_RATE) and on_grid(study) and unit in trials:
        for values, group in split(study, trials, others):
            tuned = {value: at_best_rate(study, arm) for value, arm in group.groupby(down, sort=False)}
            arms = {value: arm for value, arm in tuned.items() if arm is not None}
            worst = _worst(arms)
            rows += [
                {**values, "arm": value, "reference": worst, **_compared(arm, arms[worst], unit, curve_of)}
                for value, arm in arms.items()
                if worst is not None and value != worst
            ]
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


def _worst(arms: dict[Any, pd.DataFrame]) -> Any:
    """Return the arm of the highest median loss among those that learned anything in every replicate, or None."""
    learned = {
        value: arm["capped_excess"].median()
        for value, arm in arms.items()
        if (arm["capped_excess"] < arm["initial_loss"] - arm["floor"]).all()
    }
    return max(learned, key=lambda value: learned[value], default=None)


class Ratio(NamedTuple):
    """The logarithm of one replicate's ratio: of all that it trained, a lower bound, where it is ``censored``."""

    log: float
    censored: bool


def _compared(
    arm: pd.DataFrame, reference: pd.DataFrame, unit: str, curve_of: Callable[[str], Curve]
) -> dict[str, Any]:
    against = {row["replicate"]: row for row in records(reference)}
    ratios = [
        _ratio(row, against[row["replicate"]], unit, curve_of) for row in records(arm) if row["replicate"] in against
    ]
    return {
        **{f"{of}learning_rate": frame[LEARNING_RATE].iloc[0] if LEARNING_RATE in frame else None
           for of, frame in (("", arm), ("reference_", reference))},
        "replicates": len(ratios),
        "reached": sum(not ratio.censored for ratio in ratios),
        "censored": sum(ratio.censored for ratio in ratios),
        **_summary(ratios),
        "unit": "bytes" if unit == "text_bytes" else unit,
    }  # fmt: skip


def _ratio(row: dict[str, Any], reference: dict[str, Any], unit: str, curve_of: Callable[[str], Curve]) -> Ratio:
    curve = curve_of(row["key"])
    step = first_step_below(curve, curve.floor + reference["final_excess"])
    # A trial that ended early would not have reached that loss in the rest of its budget either.
    trained = (row["budget_steps"] if step is None else step) * row[unit] / row["steps"]
    return Ratio(math.log(trained / reference[unit]), step is None)


def _summary(ratios: list[Ratio]) -> dict[str, float]:
    logs = np.array([ratio.log for ratio in ratios])
    censored = np.array([ratio.censored for ratio in ratios], dtype=bool)
    mean, interval = math.nan, NONE
    if censored.any():
        mean, interval = censored_mean(logs[~censored], logs[censored])
    elif len(logs):
        mean, interval = float(logs.mean()), student_interval(logs.tolist())
    low, high = np.exp(interval).tolist()
    at_least = math.exp(logs.mean()) if len(logs) else math.nan
    return {"ratio": math.exp(mean), "low": low, "high": high, "at_least": at_least}


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
