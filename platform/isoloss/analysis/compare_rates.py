"""Learning-rate sensitivity and best loss of two studies, and their differences, over the learning rates of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from isoloss.analysis.compare_cells import by_cell
from isoloss.analysis.difference import difference
from isoloss.analysis.sensitivity import LEARNING_RATE, sensitivity
from isoloss.analysis.tuning import best_of_others, losses_by_rate, regret

SENSITIVITY = (
    "Learning-rate sensitivity is the mean of min(loss, loss at initialisation) above the lowest loss (Wortsman et al. "
    "2023), by replicate, over the learning rates that both studies list. The difference is the second study less the "
    "first, with a 95 % interval for its row alone: Student's of paired replicates, or Welch's where seeds differ."
)
BEST = (
    "The best loss is that at the best of the learning rates that both studies list, which a replicate takes from the "
    "medians of the others, so that no loss chooses its own rate (of one replicate, its lowest). The difference is the "
    "second study less the first, with a 95 % interval as above, made longer by as much as another rate of either "
    "study may be better (at 80 % by Student's t). The best rate is that of the lowest median loss."
)

GROUP_COLUMNS = (
    *("learning_rates", "left_replicates", "right_replicates"),
    *(f"{which}_{column}" for which in ("sensitivity", "best") for column in ("left", "right", "difference")),
    *(f"{which}_{column}" for which in ("sensitivity", "best") for column in ("low", "high")),
    *("left_best_rate", "right_best_rate"),
)


def groups_table(
    left: pd.DataFrame, right: pd.DataFrame, axes: Sequence[str], rates: Sequence[float], *, paired: bool
) -> pd.DataFrame:
    """Return learning-rate sensitivity and best loss of both, and their differences, over the same learning rates.

    One row a combination of the axes other than the learning rate, over replicates that have finished at all of
    ``rates``; empty where these are fewer than two. ``sensitivity_`` and ``best_`` columns hold ``left``, ``right``,
    ``difference`` and its 95 % interval (``low``, ``high``) as ``difference`` has them, that of the best loss made
    longer by the ``regret`` of either study; ``left_best_rate`` and ``right_best_rate`` are those of the lowest median.
    """
    others = [path for path in axes if path != LEARNING_RATE]
    rows: list[dict[str, Any]] = []
    if len(rates) >= 2:
        of_left, of_right = by_cell(left, others), by_cell(right, others)
        for group, one in of_left.items():
            if group in of_right:
                pair = losses_by_rate(one, rates), losses_by_rate(of_right[group], rates)
                if len(pair[0]) and len(pair[1]):
                    rows.append({**dict(zip(others, group, strict=True)), **_group(*pair, paired=paired)})
    return pd.DataFrame(rows, columns=[*others, *GROUP_COLUMNS])


def _group(left: pd.DataFrame, right: pd.DataFrame, *, paired: bool) -> dict[str, Any]:
    rates = [float(rate) for rate in left.columns]
    spread = [
        {int(r): sensitivity(rates, loss.loc[r].tolist(), evenly=True) for r in loss.index} for loss in (left, right)
    ]
    best = difference(_tuned(left), _tuned(right), paired=paired)
    best |= {"low": best["low"] - regret(right), "high": best["high"] + regret(left)}
    measured = {"sensitivity": difference(*spread, paired=paired), "best": best}
    return {
        "learning_rates": len(rates),
        "left_replicates": len(left),
        "right_replicates": len(right),
        **{f"{name}_{column}": value for name, row in measured.items() for column, value in row.items()},
        "left_best_rate": left.median().idxmin(),
        "right_best_rate": right.median().idxmin(),
    }


def _tuned(loss: pd.DataFrame) -> dict[int, float]:
    """Return each replicate's loss at the learning rate that is best in the others; of one replicate, its lowest."""
    if len(loss) == 1:
        return {int(loss.index[0]): float(loss.iloc[0].min())}
    return {replicate: float(loss.loc[replicate, rate]) for replicate, rate in best_of_others(loss).items()}
