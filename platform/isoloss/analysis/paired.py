"""Paired comparisons: by how much each arm of a study ends above the first, replicate by replicate."""

from __future__ import annotations

import math
from statistics import mode
from typing import Any

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import split
from isoloss.config.axes import Choice
from isoloss.config.base import Part, value_label
from isoloss.study import Study

COLUMNS = (
    *("arm", "reference", "learning_rate", "reference_learning_rate", "pairs"),
    *("difference", "low", "high", "d_z", "higher", "p", "p_holm"),
)


def arms(study: Study) -> tuple[str, list[str]] | None:
    """Return the axis whose values are compared, and their labels: the map's axis down if it lists parts, else None."""
    if not study.axes or study.replicates == 1:
        return None
    down = study.map_axes[1]
    axis = study.axes[down]
    if not isinstance(axis, Choice) or not all(isinstance(value, Part) for value in axis.values):
        return None
    return down, [value_label(value) for value in axis.values]


def paired_table(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    """Return each arm's loss less the first arm's, within each combination of the other axes.

    Replicates share all random streams, so that their differences are paired. Each arm is read at its best learning
    rate, chosen for a replicate by the median of the others, so that no loss chooses its own rate;
    ``learning_rate`` is the one chosen most often. ``difference`` is the mean over replicates of the final excess loss,
    capped as in maps; ``low`` and ``high`` its 95 % interval by Student's t; ``d_z`` Cohen's effect size, the mean over
    the standard deviation of the differences; ``higher`` how many are above 0; ``p`` of the two-sided t-test, and
    ``p_holm`` corrected for all arms of a combination (Holm 1979). NaN where fewer than two pairs are finished or all
    differences are equal.
    """
    compared = arms(study)
    down, labels = compared or (None, [])
    others = tuple(path for path in study.axes if path not in (down, LEARNING_RATE))
    rows: list[dict[str, Any]] = []
    if down is not None and len(trials):
        for values, group in split(study, trials, others):
            of_arm = {label: _tuned(group[group[down] == label]) for label in labels}
            against = [_compared(label, of_arm[label], labels[0], of_arm[labels[0]]) for label in labels[1:]]
            _correct(against)
            rows += [{**values, **row} for row in against]
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


def _tuned(arm: pd.DataFrame) -> dict[int, tuple[float, float | None]]:
    """Return (loss, learning rate) of each replicate at the rate that is best in the other replicates."""
    if LEARNING_RATE not in arm:
        return {row["replicate"]: (row["capped_excess"], None) for _, row in arm.iterrows()}
    loss = arm.pivot(index="replicate", columns=LEARNING_RATE, values="capped_excess").dropna()
    tuned: dict[int, tuple[float, float | None]] = {}
    for replicate in loss.index:
        rest = loss.drop(index=replicate)
        if len(rest):
            rate = rest.median().idxmin()
            tuned[int(replicate)] = (float(loss.loc[replicate, rate]), float(rate))
    return tuned


def _compared(
    label: str,
    arm: dict[int, tuple[float, float | None]],
    reference_label: str,
    reference: dict[int, tuple[float, float | None]],
) -> dict[str, Any]:
    shared = sorted(set(arm) & set(reference))
    differences = [arm[replicate][0] - reference[replicate][0] for replicate in shared]
    return {
        "arm": label,
        "reference": reference_label,
        "learning_rate": _most_often(arm),
        "reference_learning_rate": _most_often(reference),
        "pairs": len(shared),
        **_statistics(differences),
    }


def _most_often(tuned: dict[int, tuple[float, float | None]]) -> float | None:
    rates = [rate for _, rate in tuned.values() if rate is not None]
    return mode(rates) if rates else None


def _statistics(differences: list[float]) -> dict[str, Any]:
    from scipy.stats import t

    count = len(differences)
    mean = sum(differences) / count if count else math.nan
    row = {"difference": mean, "higher": sum(value > 0 for value in differences)}
    spread = math.sqrt(sum((value - mean) ** 2 for value in differences) / (count - 1)) if count > 1 else 0.0
    if spread == 0:
        return {**row, **dict.fromkeys(("low", "high", "d_z", "p"), math.nan)}
    error = spread / math.sqrt(count)
    half = float(t.ppf(0.975, count - 1)) * error
    p = 2 * float(t.sf(abs(mean) / error, count - 1))
    return {**row, "low": mean - half, "high": mean + half, "d_z": mean / spread, "p": p}


def _correct(rows: list[dict[str, Any]]) -> None:
    """Add Holm's correction: the i-th smallest of n p-values times n - i, never below the one before."""
    known = sorted((row for row in rows if not math.isnan(row["p"])), key=lambda row: row["p"])
    largest = 0.0
    for i, row in enumerate(known):
        largest = row["p_holm"] = min(1.0, max(largest, row["p"] * (len(known) - i)))
    for row in rows:
        row.setdefault("p_holm", math.nan)
