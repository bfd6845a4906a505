"""Two studies cell by cell: how much higher the second ends, and which outcomes change."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from isoloss.analysis.paired import CELL_COLUMNS, paired_cells
from isoloss.analysis.statistics import holm, student_interval
from isoloss.analysis.surface import majority, records

DEFINITION = (
    "The difference is the final excess loss of the second study, at most the initial one, less that of the first, "
    "averaged over replicates, in cells where both have the same value on every axis. Where both studies draw from the "
    "same seed, replicates of one number share all random streams: the 95 % interval and p are Student's, of paired "
    "differences. Where seeds differ they are Welch's, of two independent groups of unequal variance. Intervals are "
    "each for its cell alone; p_holm is corrected for the number of cells (Holm 1979). The outcome of a cell is its "
    "replicates' most frequent one, of equally frequent ones the worst, by the thresholds of its own study."
)
OUTCOMES = ("left_finished", "right_finished", "left_outcome", "right_outcome", "changed", "same_trials")

Losses = Mapping[int, float]
"""A number of each replicate."""


def cells_table(left: pd.DataFrame, right: pd.DataFrame, axes: Sequence[str], *, paired: bool) -> pd.DataFrame:
    """Return one row a cell in which both tables of trials have finished some.

    Columns are those of ``paired.paired_cells`` (``pairs`` is 0 where replicates are not ``paired``, and the interval
    Welch's); ``left_finished`` and ``right_finished`` replicates; the cell's ``left_outcome`` and ``right_outcome``,
    and whether they differ (``changed``); ``same_trials`` counts trials of one key: the same trial in both.
    """
    table = paired_cells(left, right, axes) if paired else welch_cells(left, right, axes)
    of_left, of_right = by_cell(left, axes), by_cell(right, axes)
    rows = []
    for row in records(table):
        one, other = (found[tuple(row[path] for path in axes)] for found in (of_left, of_right))
        outcomes = [majority(Counter(trials["outcome"])) for trials in (one, other)]
        same = len(set(one["key"]) & set(other["key"]))
        values = (len(one), len(other), *outcomes, outcomes[0] != outcomes[1], same)
        rows.append({**row, **dict(zip(OUTCOMES, values, strict=True))})
    return pd.DataFrame(rows, columns=[*axes, *CELL_COLUMNS, *OUTCOMES])


def by_cell(table: pd.DataFrame, axes: Sequence[str]) -> dict[tuple[Hashable, ...], pd.DataFrame]:
    """Return the rows of each cell, by its values at ``axes``, in the order in which cells first occur."""
    if not axes:
        return {(): table} if len(table) else {}
    rows: dict[tuple[Hashable, ...], list[int]] = {}
    for i, cell in enumerate(zip(*(table[path] for path in axes), strict=True)):
        rows.setdefault(cell, []).append(i)
    return {cell: table.iloc[places] for cell, places in rows.items()}


def welch_cells(left: pd.DataFrame, right: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Return what ``paired.paired_cells`` does for studies whose replicates share no streams, by Welch's t-test."""
    of_left, of_right = by_cell(left, axes), by_cell(right, axes)
    rows: list[dict[str, Any]] = []
    for cell, one in of_left.items():
        if cell in of_right:
            values = [
                dict(zip(table["replicate"], table["capped_excess"], strict=True)) for table in (one, of_right[cell])
            ]
            rows.append({**dict(zip(axes, cell, strict=True)), "pairs": 0, **difference(*values, paired=False)})
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    return pd.DataFrame(rows, columns=[*axes, *CELL_COLUMNS])


def difference(left: Losses, right: Losses, *, paired: bool) -> dict[str, float]:
    """Return means (``left``, ``right``), ``difference``, ``low`` and ``high`` (95 %), ``p`` over replicates.

    ``paired`` takes replicates that both have, and Student's t; otherwise all, and Welch's. NaN where there are too few
    replicates, or no spread.
    """
    from scipy.stats import ttest_1samp, ttest_ind

    if paired:
        shared = sorted(set(left) & set(right))
        left, right = ({replicate: one[replicate] for replicate in shared} for one in (left, right))
    nan = math.nan
    if not left or not right:
        return dict.fromkeys(("left", "right", "difference", "low", "high", "p"), nan)
    means = fmean(left.values()), fmean(right.values())
    row = {"left": means[0], "right": means[1], "difference": means[1] - means[0], "low": nan, "high": nan, "p": nan}
    if paired:
        above = [right[replicate] - left[replicate] for replicate in left]
        low, high = student_interval(above)
        if not math.isnan(low):
            row |= {"low": low, "high": high, "p": float(ttest_1samp(above, 0.0).pvalue)}
    elif min(len(left), len(right)) > 1 and (len(set(left.values())) > 1 or len(set(right.values())) > 1):
        with warnings.catch_warnings():
            # One group without spread, such as trials that all count with their initial loss, is no cause for alarm.
            warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
            test = ttest_ind(list(right.values()), list(left.values()), equal_var=False)
        interval = test.confidence_interval(0.95)
        row |= {"low": float(interval.low), "high": float(interval.high), "p": float(test.pvalue)}
    return row
