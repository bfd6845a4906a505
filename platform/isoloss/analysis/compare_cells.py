"""Two studies cell by cell: how much higher the second ends, and which outcomes change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from isoloss.analysis.difference import difference
from isoloss.analysis.statistics import holm
from isoloss.analysis.surface import majority

DEFINITION = (
    "The difference is the final excess loss of the second study, at most the initial one, less that of the first, "
    "averaged over replicates, in cells where both have the same value on every axis. Where both studies draw from the "
    "same seed, replicates of one number share all random streams: the 95 % interval and p are Student's, of paired "
    "differences. Where seeds differ they are Welch's, of two independent groups of unequal variance. Intervals are "
    "each for its cell alone; p_holm is corrected for the number of cells (Holm 1979). The outcome of a cell is its "
    "replicates' most frequent one, of equally frequent ones the worst, by the thresholds of its own study."
)
COLUMNS = (
    *("pairs", "left", "right", "difference", "low", "high", "p", "p_holm"),
    *("left_finished", "right_finished", "left_outcome", "right_outcome", "changed", "same_trials"),
)
"""The columns of ``cells_table`` beside the axes."""


def cells_table(left: pd.DataFrame, right: pd.DataFrame, axes: Sequence[str], *, paired: bool) -> pd.DataFrame:
    """Return one row a cell in which both tables of trials have finished some, in the order of ``left``'s cells.

    A cell is shared where all ``axes`` have equal values. ``left``, ``right``, ``difference``, ``low``, ``high`` and
    ``p`` of the capped excess loss are as ``difference`` has them, ``p_holm`` is corrected for all cells (Holm 1979);
    ``pairs`` counts the replicates that both have finished, without which a cell has no row, and is 0 where they are
    not ``paired``. ``left_finished`` and ``right_finished`` count replicates; ``changed`` says whether the cell's
    ``left_outcome`` and ``right_outcome`` differ; ``same_trials`` counts trials of one key: the same trial in both.

    Raises ValueError when a table holds two trials of one cell and replicate: ``axes`` must tell all cells apart.
    """
    of_left, of_right = by_cell(left, axes), by_cell(right, axes)
    rows: list[dict[str, Any]] = []
    for cell, one in of_left.items():
        other = of_right.get(cell)
        if other is None:
            continue
        losses = [_losses(trials, cell, axes) for trials in (one, other)]
        pairs = len(set(losses[0]) & set(losses[1])) if paired else 0
        if paired and not pairs:
            continue
        outcomes = [majority(Counter(trials["outcome"])) for trials in (one, other)]
        rows.append({
            **dict(zip(axes, cell, strict=True)), "pairs": pairs, **difference(*losses, paired=paired),
            "left_finished": len(one), "right_finished": len(other), "left_outcome": outcomes[0],
            "right_outcome": outcomes[1], "changed": outcomes[0] != outcomes[1],
            "same_trials": len(set(one["key"]) & set(other["key"])),
        })  # fmt: skip
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    return pd.DataFrame(rows, columns=[*axes, *COLUMNS])


def by_cell(table: pd.DataFrame, axes: Sequence[str]) -> dict[tuple[Hashable, ...], pd.DataFrame]:
    """Return the rows of each cell, by its values at ``axes``, in the order in which cells first occur."""
    if not axes:
        return {(): table} if len(table) else {}
    rows: dict[tuple[Hashable, ...], list[int]] = {}
    for i, cell in enumerate(zip(*(table[path] for path in axes), strict=True)):
        rows.setdefault(cell, []).append(i)
    return {cell: table.iloc[places] for cell, places in rows.items()}


def _losses(trials: pd.DataFrame, cell: tuple[Hashable, ...], axes: Sequence[str]) -> dict[int, float]:
    """Return the capped excess loss of each replicate of a cell."""
    losses = dict(zip(trials["replicate"], trials["capped_excess"], strict=True))
    if len(losses) < len(trials):
        raise ValueError(f"{', '.join(map(repr, axes))} do not tell all cells apart: two trials share {cell}")
    return losses
