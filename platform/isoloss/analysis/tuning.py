"""Tuning: the learning rates that an arm of a study is read at the best of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import scattered, split
from isoloss.analysis.table import axis_value
from isoloss.config.search import Grid
from isoloss.study import Study

REGRET_LEVEL = 0.80
"""One-sided level at which another rate may be better: with it the intervals of ``paired`` and of ``compare_rates``
hold the truth about as often as they say in simulations (docs/measures.md, docs/comparing.md)."""


def on_grid(study: Study) -> bool:
    """Say whether trials lie at values that the study lists, along every axis, so that replicates meet in cells."""
    return bool(study.axes) and not any(scattered(study, path) for path in study.axes)


def grid_groups(study: Study, trials: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield (values of the axes but the learning rate, their trials) of a grid with learning rates; else nothing."""
    if LEARNING_RATE in study.axes and isinstance(study.search, Grid) and len(trials):
        others = tuple(path for path in study.axes if path != LEARNING_RATE)
        yield from (found for found in split(study, trials, others) if len(found[1]))


def listed_rates(study: Study) -> list[float] | None:
    """Return the learning rates that a study lists; None where it does not vary."""
    if LEARNING_RATE not in study.axes:
        return None
    return [axis_value(value) for value in study.listed(LEARNING_RATE) or ()]


def at_best_rate(study: Study, arm: pd.DataFrame) -> pd.DataFrame | None:
    """Return an arm's trials at the learning rate of its lowest median capped excess loss.

    None while some listed learning rate has no finished trial: an arm whose good rates are still to come must not be
    taken for one that has none.
    """
    rates = listed_rates(study)
    if rates is None:
        return arm if len(arm) else None
    if not set(rates) <= set(arm[LEARNING_RATE]):
        return None
    return arm[arm[LEARNING_RATE] == arm.groupby(LEARNING_RATE)["capped_excess"].median().idxmin()]


def losses_by_rate(trials: pd.DataFrame, rates: Sequence[float]) -> pd.DataFrame:
    """Return capped excess losses, a row a replicate that has finished at every one of ``rates``, a column a rate.

    An arm whose good rates have not finished yet must not be taken for one that has none.
    """
    loss = trials.pivot(index="replicate", columns=LEARNING_RATE, values="capped_excess")
    return loss.reindex(columns=list(rates)).dropna()


def best_of_others(loss: pd.DataFrame) -> dict[int, float]:
    """Return, for each replicate, the learning rate of the lowest median over the others, so that none chooses its own.

    ``loss`` is as ``losses_by_rate`` gives it; empty for fewer than two replicates.
    """
    if len(loss) < 2:
        return {}
    return {int(replicate): float(loss.drop(index=replicate).median().idxmin()) for replicate in loss.index}


def regret(loss: pd.DataFrame) -> float:
    """Return by how much another learning rate may be better than that of the lowest median, in the unit of ``loss``.

    The upper end, at ``REGRET_LEVEL`` by Student's t, of how much lower the other ends in the mean over replicates; 0
    where no rate may be better. ``loss`` is as ``losses_by_rate`` gives it.
    """
    from scipy.stats import t

    if len(loss) < 2:
        return 0.0
    above = loss.rsub(loss[loss.median().idxmin()], axis=0)
    error = above.std(ddof=1) / math.sqrt(len(loss))
    return max(0.0, float((above.mean() + float(t.ppf(REGRET_LEVEL, len(loss) - 1)) * error).max()))
