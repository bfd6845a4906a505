"""Tuning: the learning rates that an arm of a study is read at the best of."""

from __future__ import annotations

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import scattered
from isoloss.analysis.table import axis_value
from isoloss.study import Study


def on_grid(study: Study) -> bool:
    """Say whether trials lie at values that the study lists, along every axis, so that replicates meet in cells."""
    return bool(study.axes) and not any(scattered(study, path) for path in study.axes)


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
