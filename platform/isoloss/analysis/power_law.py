"""Power laws: how the loss at the best learning rate falls or rises with vocabulary, rank, width or budget."""

# Shapes: P points.

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from isoloss.analysis.power_law_fit import Floats, fit, fit_with_intervals
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import split
from isoloss.analysis.table import axis_value
from isoloss.analysis.tuning import at_best_rate, on_grid
from isoloss.study import Study

LEAST_POINTS, LEAST_POINTS_FREE = 4, 5
"""The fewest points of a fit, and of one in which the irreducible loss is free."""

COLUMNS = (
    *("exponent", "exponent_low", "exponent_high", "coefficient", "coefficient_low", "coefficient_high"),
    *("irreducible", "irreducible_low", "irreducible_high", "irreducible_free"),
    *("points", "untrained", "leave_one_out", "r2"),
)
"""The columns of ``power_law_table`` beside the axis and the values of the other axes."""

DEFINITION = (
    "The law is loss = irreducible + coefficient * x^exponent: the final excess loss (of a text the loss itself, its "
    "floor being unknown) over an axis's values x, each at the learning rate of its lowest median over replicates; the "
    "loss falls where the exponent is negative. It is fitted by least squares of relative errors, with an irreducible "
    "loss of at least the floor from five values on, and of the floor itself with four (irreducible_free: false). "
    "Intervals are at 95 %, by profile likelihood with quantiles of F (Bates & Watts 1988), and lack an end that lies "
    "beyond the exponents tried. Values whose median loss is its initial one, or not above the floor, are untrained "
    "and left out; leave_one_out is the median relative error in predicting a value's loss from the others, r2 the "
    "share of a constant's squared relative errors that the law takes away."
)


def power_law_table(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row a numeric axis other than the learning rate and a combination of the other axes.

    ``axis`` is the axis's path; its own column, among those of the axes, is NaN. Points are the axis's values, their
    loss the median over replicates of the final excess loss, at the learning rate where that is lowest, once every
    listed rate has a finished trial. Values that are not above 0 are none. ``untrained`` counts those left out because
    that median is not below the initial excess loss or not above 0. Combinations of fewer than four points have no
    row, nor has a study whose search scatters trials along an axis. ``irreducible`` is free from five points on.
    ``leave_one_out`` is ``leave_one_out``'s, the other columns those of ``power_law_fit.fit_with_intervals``.
    """
    paths = [path for path in study.axes if path != LEARNING_RATE]
    rows: list[dict[str, Any]] = []
    for axis in paths if on_grid(study) and len(trials) else ():
        if not _numeric(study, axis):
            continue
        for values, group in split(study, trials, tuple(path for path in paths if path != axis)):
            x, loss, untrained = _points(study, axis, group)
            if len(x) >= LEAST_POINTS:
                rows.append({"axis": axis, axis: math.nan, **values, **_row(x, loss), "untrained": untrained})
    return pd.DataFrame(rows, columns=["axis", *paths, *COLUMNS])


def _numeric(study: Study, path: str) -> bool:
    values = [axis_value(value) for value in study.listed(path) or ()]
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _points(study: Study, axis: str, group: pd.DataFrame) -> tuple[Floats, Floats, int]:
    """Return the axis's values, the median loss of each at its best learning rate, and how many did not train."""
    points, untrained = [], 0
    for value, arm in group[group[axis] > 0].groupby(axis, sort=True):
        best = at_best_rate(study, arm)
        if best is None:
            continue
        loss, initial = best["capped_excess"].median(), (best["initial_loss"] - best["floor"]).median()
        if 0 < loss < initial:
            points.append((value, loss))
        else:
            untrained += 1
    x, loss = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return x, loss, untrained


def _row(x_P: Floats, loss_P: Floats) -> dict[str, Any]:
    law = fit_with_intervals(x_P, loss_P, free=len(x_P) >= LEAST_POINTS_FREE)
    ends = {
        f"{name}_{end}": getattr(getattr(law, f"{name}_interval"), end)
        for name in ("exponent", "coefficient", "irreducible")
        for end in ("low", "high")
    }
    return {
        **{name: getattr(law, name) for name in ("exponent", "coefficient", "irreducible", "r2")},
        **ends,
        "irreducible_free": law.free,
        "points": len(x_P),
        "leave_one_out": leave_one_out(x_P, loss_P, free=law.free),
    }


def leave_one_out(x_P: Floats, loss_P: Floats, *, free: bool) -> float:
    """Return the median relative error in predicting each point's loss from a law fitted to the others."""
    errors = []
    for i, x in enumerate(x_P):
        law = fit(np.delete(x_P, i), np.delete(loss_P, i), free=free)
        errors.append(abs(law.at(x) / loss_P[i] - 1))
    return float(np.median(errors))
