"""Paired comparisons: by how much arms of a study, or cells of two studies, end above each other in each replicate."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import fmean, mode
from typing import Any

import numpy as np
import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.statistics import bootstrap_interval, holm, student_interval
from isoloss.analysis.surface import records, split
from isoloss.analysis.tuning import listed_rates, on_grid
from isoloss.config.axes import Choice
from isoloss.config.base import Part, value_label
from isoloss.study import Study

COLUMNS = (
    *("arm", "reference", "learning_rate", "reference_learning_rate", "pairs"),
    *("difference", "low", "high", "boot_low", "boot_high", "d_z", "higher", "p", "p_holm"),
)
CELL_COLUMNS = ("pairs", "left", "right", "difference", "low", "high", "p", "p_holm")
"""The columns of ``paired_cells`` beside the axes."""

DEFINITION = (
    "The difference is an arm's final excess loss, at most the initial one, less that of the first arm in the same "
    "replicate, averaged over replicates; these share all random streams, so that their differences are paired. Each "
    "arm stands at its best learning rate, which a replicate takes from the others: the lowest of their medians. "
    "Intervals are at 95 %, each for its row alone: by Student's t over replicates, and (boot) by the bootstrap over "
    "replicates, widened for their small number (Hesterberg 2015), from six on. d_z is the mean of the differences "
    "over their standard deviation (Cohen), p that of the two-sided paired t-test, p_holm the same corrected for the "
    "number of arms (Holm 1979)."
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
    ``learning_rate`` is the one chosen most often. Only replicates that finished at every learning rate count.
    ``difference`` is the mean over replicates of the final excess loss, capped as in maps; ``low`` and ``high`` its
    95 % interval by Student's t, ``boot_low`` and ``boot_high`` by the bootstrap (NaN below six pairs); ``d_z``
    Cohen's effect size, the mean over the standard deviation of the differences; ``higher`` how many are above 0;
    ``p`` of the two-sided t-test, and ``p_holm`` corrected for all arms of a combination (Holm 1979). NaN where fewer
    than two pairs are finished or all differences are equal. Empty where a search scatters trials along an axis, so
    that no two arms meet at one place.
    """
    down, labels = arms(study) or (None, [])
    others = tuple(path for path in study.axes if path not in (down, LEARNING_RATE))
    rows: list[dict[str, Any]] = []
    if down is not None and len(trials) and on_grid(study):
        rates = listed_rates(study)
        for values, group in split(study, trials, others):
            of_arm = {label: _tuned(group[group[down] == label], rates) for label in labels}
            against = [_compared(label, of_arm[label], labels[0], of_arm[labels[0]]) for label in labels[1:]]
            _correct(against)
            rows += [{**values, **row} for row in against]
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


def paired_cells(left: pd.DataFrame, right: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Return how much higher each cell ends in ``right`` than in ``left``, in the order of ``left``'s cells.

    ``left`` and ``right`` are tables of trials; a cell is shared where all ``axes`` have equal values, and pairs are
    replicates of the same number: pair only studies whose replicates share their random streams. ``left`` and
    ``right`` are the cell's means over the ``pairs``, ``difference`` the second less the first, of the capped excess
    loss; ``low`` and ``high`` its 95 % interval by Student's t; ``p`` of the two-sided paired t-test, ``p_holm``
    corrected for all cells (Holm 1979). NaN as in ``paired_table``. A shared cell without a pair has no row.

    Raises ValueError when a table holds two trials of one cell and replicate: ``axes`` must tell all cells apart.
    """
    of_left, of_right = _by_cell(left, axes), _by_cell(right, axes)
    rows: list[dict[str, Any]] = []
    for cell, losses in of_left.items():
        shared = sorted(set(losses) & set(of_right.get(cell, {})))
        if shared:
            before, after = ([of[replicate] for replicate in shared] for of in (losses, of_right[cell]))
            differences = [new - old for old, new in zip(before, after, strict=True)]
            rows.append({
                **dict(zip(axes, cell, strict=True)), "pairs": len(shared), "left": fmean(before),
                "right": fmean(after), "difference": fmean(differences), **_test(differences),
            })  # fmt: skip
    _correct(rows)
    return pd.DataFrame(rows, columns=[*axes, *CELL_COLUMNS])


def _by_cell(trials: pd.DataFrame, axes: Sequence[str]) -> dict[tuple[Hashable, ...], dict[int, float]]:
    """Return the capped excess loss of each replicate of each cell."""
    found: dict[tuple[Hashable, ...], dict[int, float]] = {}
    for row in records(trials):
        cell = tuple(row[path] for path in axes)
        losses = found.setdefault(cell, {})
        if row["replicate"] in losses:
            raise ValueError(f"{', '.join(map(repr, axes))} do not tell all cells apart: two trials share {cell}")
        losses[row["replicate"]] = row["capped_excess"]
    return found


def _tuned(arm: pd.DataFrame, rates: list[float] | None) -> dict[int, tuple[float, float | None]]:
    """Return (loss, learning rate) of each replicate at the rate that is best in the other replicates."""
    if rates is None:
        return {row["replicate"]: (row["capped_excess"], None) for row in records(arm)}
    loss = arm.pivot(index="replicate", columns=LEARNING_RATE, values="capped_excess")
    # An arm whose good rates have not finished yet must not be taken for one that has none.
    loss = loss.reindex(columns=rates).dropna()
    values = loss.to_numpy()
    tuned: dict[int, tuple[float, float | None]] = {}
    for i, replicate in enumerate(loss.index if len(values) > 1 else ()):
        best = int(np.median(np.delete(values, i, axis=0), axis=0).argmin())
        tuned[int(replicate)] = (float(values[i, best]), rates[best])
    return tuned


def _compared(
    label: str,
    arm: dict[int, tuple[float, float | None]],
    reference_label: str,
    reference: dict[int, tuple[float, float | None]],
) -> dict[str, Any]:
    shared = sorted(set(arm) & set(reference))
    differences = [arm[replicate][0] - reference[replicate][0] for replicate in shared]
    tested = _test(differences)
    known = not math.isnan(tested["low"])
    mean = fmean(differences) if differences else math.nan
    boot_low, boot_high = bootstrap_interval(differences) if known else (math.nan, math.nan)
    return {
        "arm": label,
        "reference": reference_label,
        "learning_rate": _most_often(arm),
        "reference_learning_rate": _most_often(reference),
        "pairs": len(shared),
        "difference": mean,
        **tested,
        "boot_low": boot_low,
        "boot_high": boot_high,
        "d_z": mean / float(np.std(differences, ddof=1)) if known else math.nan,
        "higher": sum(value > 0 for value in differences),
    }


def _most_often(tuned: dict[int, tuple[float, float | None]]) -> float | None:
    rates = [rate for _, rate in tuned.values() if rate is not None]
    return mode(rates) if rates else None


def _test(differences: list[float]) -> dict[str, float]:
    """Return Student's 95 % interval of the mean difference, and the p-value of the two-sided t-test."""
    from scipy.stats import t

    low, high = student_interval(differences)
    if math.isnan(low):
        return {"low": low, "high": high, "p": math.nan}
    count = len(differences)
    error = float(np.std(differences, ddof=1)) / math.sqrt(count)
    return {"low": low, "high": high, "p": 2 * float(t.sf(abs(fmean(differences)) / error, count - 1))}


def _correct(rows: list[dict[str, Any]]) -> None:
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
