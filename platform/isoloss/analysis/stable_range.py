"""The smallest and the largest learning rate that converges on a grid, each known up to the grid's steps."""

# R replicates, M means, S spreads

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.statistics import NONE, Interval
from isoloss.analysis.tuning import grid_groups
from isoloss.outcome import Outcome
from isoloss.study import Study

DEFINITION = (
    "The minimum viable and the maximum stable learning rate of the mean seed: the ends of the longest unbroken "
    "stretch of learning rates at which a replicate converges, in the mean of their logarithms over replicates. Each "
    "end lies somewhere between the last learning rate that converges and the next, which does not; the number is the "
    "geometric mean of the middles. The 95 % interval is that of the mean of a normal distribution, seen through "
    "these steps alone (interval censoring), with a flat prior for the mean and for the logarithm of the spread. An "
    "end is only a bound where some replicate converges up to the end of what was tried; nothing is known beyond."
)

END_COLUMNS = ("", "_low", "_high", "_is_bound")
COLUMNS = (
    *("closed", "replicates", "open", "gaps"),
    *(f"{end}{column}" for end in ("lowest", "highest") for column in END_COLUMNS),
)
"""The columns of ``stable_range_table`` beside the other axes."""

SPREADS = (0.03, 0.25)
"""Least and largest spread of an end between seeds, in decades, that the interval allows for."""

MEANS, SPREAD_STEPS = 801, 20

Bracket = tuple[float, float]
"""Log10 of the learning rates between which an end lies; infinite beyond what was tried."""


def stable_range_table(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the ends of the stable range within each combination of the other axes, for a study on a grid.

    Other searches have no rows: the bands of a boundary search tell. ``closed``: no replicate converges anywhere.
    ``replicates`` counts those that have finished at some rate, ``open`` those that converge somewhere: the ends are
    theirs. ``gaps`` counts the rates, over all replicates, that converge outside of the longest stretch. ``lowest`` and
    ``highest`` are learning rates with their 95 % intervals (``_low``, ``_high``): NaN for fewer than two open
    replicates, and on the side of the end of the range where the end is only a bound (``_is_bound``).
    """
    rows = [{**values, **_row(group)} for values, group in grid_groups(study, trials)]
    return pd.DataFrame(rows, columns=[*(path for path in study.axes if path != LEARNING_RATE), *COLUMNS])


def _row(group: pd.DataFrame) -> dict[str, Any]:
    found = []
    gaps = 0
    for _, one in group.sort_values(LEARNING_RATE).groupby("replicate"):
        converged = (one["outcome"] == str(Outcome.CONVERGED)).tolist()
        run = longest(converged)
        if run is not None:
            found.append(brackets(np.log10(one[LEARNING_RATE].to_numpy(dtype=np.float64)).tolist(), run))
            gaps += sum(converged) - (run[1] - run[0] + 1)
    row: dict[str, Any] = {
        "closed": not found,
        "replicates": group["replicate"].nunique(),
        "open": len(found),
        "gaps": gaps,
    }
    for name, ends in (("lowest", [low for low, _ in found]), ("highest", [high for _, high in found])):
        row |= {f"{name}{column}": value for column, value in zip(END_COLUMNS, _end(ends), strict=True)}
    return row


def longest(converged: Sequence[bool]) -> tuple[int, int] | None:
    """Return first and last place of the longest unbroken stretch, of equal ones the first; None without any."""
    runs, place = [], 0
    for yes, run in groupby(converged):
        length = len(list(run))
        if yes:
            runs.append((place, place + length - 1))
        place += length
    return max(runs, key=lambda run: run[1] - run[0], default=None)


def brackets(log_rate: Sequence[float], run: tuple[int, int]) -> tuple[Bracket, Bracket]:
    """Return the bracket of the lower and of the upper end of a stretch."""
    first, last = run
    below = log_rate[first - 1] if first else -math.inf
    above = log_rate[last + 1] if last + 1 < len(log_rate) else math.inf
    return (below, log_rate[first]), (log_rate[last], above)


def _end(ends: Sequence[Bracket]) -> tuple[float, float, float, bool]:
    if not ends:
        return math.nan, math.nan, math.nan, False
    # Where an end is not bracketed, it is at least as far as what was tried.
    middles = [(low + high) / 2 if math.isfinite(low + high) else (low if math.isfinite(low) else high)
               for low, high in ends]  # fmt: skip
    below, above = (any(math.isinf(end[side]) for end in ends) for side in (0, 1))
    interval = mean_interval(ends)
    low, high = math.nan if below else 10**interval.low, math.nan if above else 10**interval.high
    return 10 ** float(np.mean(middles)), low, high, below or above


def mean_interval(brackets: Sequence[Bracket], level: float = 0.95) -> Interval:
    """Return the equal-tailed credible interval of the mean of a normal distribution seen through brackets.

    The prior is flat in the mean and in the logarithm of the standard deviation between ``SPREADS``; the posterior is
    computed on a grid. NaN for fewer than two brackets, or where all are open.
    """
    from scipy.special import log_ndtr

    finite = [end for bracket in brackets for end in bracket if math.isfinite(end)]
    if len(brackets) < 2 or not any(math.isfinite(low) and math.isfinite(high) for low, high in brackets):
        return NONE
    mean_M = np.linspace(min(finite) - 2 * SPREADS[1], max(finite) + 2 * SPREADS[1], MEANS)[:, None]
    edges = np.geomspace(*SPREADS, SPREAD_STEPS + 1)
    spread_S = np.sqrt(edges[:-1] * edges[1:])
    log_MS = np.zeros((MEANS, SPREAD_STEPS))
    for (low, high), times in Counter(brackets).items():
        log_MS += times * _log_between((low - mean_M) / spread_S, (high - mean_M) / spread_S, log_ndtr)
    weight_M = np.exp(log_MS - log_MS.max()).sum(axis=1)
    share_M = np.cumsum(weight_M) / weight_M.sum()
    tail = (1 - level) / 2
    low_place, high_place = np.searchsorted(share_M, [tail, 1 - tail])
    return Interval(float(mean_M[low_place, 0]), float(mean_M[high_place, 0]))


def _log_between(low: Any, high: Any, log_ndtr: Any) -> Any:
    """Return log of the normal probability between ``low`` and ``high``, from the tail in which it is not lost."""
    flipped = low > 0
    low, high = np.where(flipped, -high, low), np.where(flipped, -low, high)
    below, above = log_ndtr(low), log_ndtr(high)
    return above + np.log(-np.expm1(np.minimum(below - above, -1e-300)))
