"""Figures of several runs: medians at checkpoints, and trials and cost until a map is so accurate and stays so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median

from benchmarks.boundary.runs import Run

Runs = dict[tuple[str, str], list[Run]]
"""Runs by truth and method, one a seed."""


def checkpoints(runs: Sequence[Run]) -> list[int]:
    """Return the numbers of trials at which all of the runs were judged."""
    return sorted(set.intersection(*(set(one.accuracy) for one in runs))) if runs else []


def accuracy(runs: Sequence[Run], trials: int) -> float:
    """Return the median accuracy over seeds."""
    return median(one.accuracy[trials] for one in runs)


def first(run: Run, level: float) -> float:
    """Return the first checkpoint at which a run's map reaches a level that it holds at the next; inf if none."""
    judged = sorted(run.accuracy)
    return next(
        (now for now, after in pairwise(judged)
         if run.accuracy[now] >= level and run.accuracy[after] >= level),
        math.inf,
    )  # fmt: skip


def trials_to(runs: Sequence[Run], level: float) -> float:
    """Return the median over seeds of the trials until a level is reached and held."""
    return median(first(one, level) for one in runs)


def cost_to(runs: Sequence[Run], level: float) -> float:
    """Return the median over seeds of the cost that was spent until a level was reached and held."""
    return median(_spent(one, first(one, level)) for one in runs)


def _spent(run: Run, trials: float) -> float:
    return math.inf if math.isinf(trials) else list(accumulate(run.cost))[int(trials) - 1]


def last(runs: Sequence[Run]) -> int:
    """Return the last checkpoint."""
    return checkpoints(runs)[-1]


def shown(number: float, runs: Sequence[Run]) -> str:
    """Return a number of trials, or that it is beyond the last checkpoint."""
    return f"> {last(runs)}" if math.isinf(number) else f"{number:.0f}"
