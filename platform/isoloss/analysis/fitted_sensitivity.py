"""Learning-rate sensitivity of scattered trials, read from a smooth surface that is fitted through their losses."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.table import axis_value
from isoloss.config.axes import Choice
from isoloss.config.search import Grid
from isoloss.study import Study

if TYPE_CHECKING:
    from isoloss.analysis.fitted_surface import FittedSurface

DEFINITION = (
    "Learning-rate sensitivity (Wortsman et al. 2023) of trials that do not lie on a grid: a Gaussian process over the "
    "axes (logarithmic ones in their logarithm) is fitted to min(loss, loss at initialisation); its mean over the "
    "logarithm of the learning rate, over the whole range, less its value at the best learning rate is read at each "
    "place of the other axes. It is inferred, not measured: the 95 % interval is that of the surfaces that agree with "
    "the trials. It speaks of the mean over seeds at each learning rate, whereas on a grid each seed is read against "
    "its own best learning rate."
)

METHOD = "fitted surface"
COLUMNS = (
    *("learning_rate_low", "learning_rate_high", "trials", "method"),
    *("sensitivity", "sensitivity_low", "sensitivity_high"),
)
"""The columns of ``fitted_sensitivity_table`` beside the other axes."""

FEWEST_AN_AXIS, PLACES, MOST_ROWS = 8, 5, 200


def fitted_sensitivity_table(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the sensitivity at each place of the other axes, for a study whose search is no grid; else no rows.

    Axes that list their values are read at all of them, ranges at ``PLACES`` even ones. ``sensitivity`` is the median
    over posterior draws of the surface, ``sensitivity_low`` and ``sensitivity_high`` its 95 % credible interval, in
    nats per scored token (bits per byte of text); NaN where no surface can be fitted. ``trials`` counts those of
    the whole study; with fewer than 8 an axis there are no rows.
    """
    others = tuple(path for path in study.axes if path != LEARNING_RATE)
    enough = len(trials) >= FEWEST_AN_AXIS * len(study.axes)
    rows: list[dict[str, Any]] = []
    if LEARNING_RATE in study.axes and not isinstance(study.search, Grid) and enough:
        low, high = _range(study)
        surface = _surface(study, trials)
        places = itertools.product(*(_places(study, path) for path in others))
        for values in itertools.islice(places, MOST_ROWS):
            at = dict(zip(others, values, strict=True))
            found = (math.nan,) * 3 if surface is None else surface.sensitivity(at, low, high)
            about = (low, high, len(trials), METHOD)
            rows.append({**at, **dict(zip(COLUMNS, (*about, *found), strict=True))})
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


def _range(study: Study) -> tuple[float, float]:
    axis = study.axes[LEARNING_RATE]
    return (min(axis.values), max(axis.values)) if isinstance(axis, Choice) else (axis.low, axis.high)


def _places(study: Study, path: str) -> list[Any]:
    listed = study.listed(path)
    if listed is not None:
        return [axis_value(value) for value in listed]
    axis = study.axes[path]
    assert not isinstance(axis, Choice)
    even = (float(f"{axis.at(i / (PLACES - 1)):.12g}") for i in range(PLACES))
    return list(dict.fromkeys(study.cell({path: value})[path] for value in even))


def _surface(study: Study, trials: pd.DataFrame) -> FittedSurface | None:
    # Optuna and scipy take a second to load: only a study that needs them pays.
    from isoloss.analysis.fitted_surface import FittedSurface

    try:
        return FittedSurface(study, trials)
    except (np.linalg.LinAlgError, FloatingPointError):
        return None
