"""The best learning rate and the loss there: a parabola through the losses around the lowest one."""

# P learning rates, x_P their log10 from the lowest one

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from isoloss.analysis.parabola import Parabola, allowing_for, coefficients, parabola, through_fourth
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.statistics import Floats, Interval
from isoloss.analysis.tuning import grid_groups
from isoloss.study import Study

DEFINITION = (
    "The best learning rate and the loss there, in the geometric mean over seeds: the vertex of a parabola in the "
    "logarithms of learning rate and final excess loss, through the rate of the lowest median and its two neighbours; "
    "rates at which some trial ended at its initial loss or was stopped are left out, since no parabola holds there. "
    "The 95 % interval of the rate is where the slope of the parabolas, one a replicate, does not differ from 0 by "
    "Student's t (Fieller 1954), cut to the range of rates; that of the loss is Student's t of their heights at the "
    "vertex. Since loss is no parabola, from four replicates on the best rate is moved by half of the way to the "
    "vertex of another one, in which the next rate stands in for the farthest of the three; both intervals allow for "
    "that way, the rate's at least for a curvature that changes by a fifth over a decade, and the loss's for how "
    "far the vertex dips below the lowest loss seen. With one replicate the parabola is fitted to five rates, and the "
    "intervals, from its residuals, tell of that seed alone. At the edge of the rates that train, the best rate is "
    "only a bound."
)

COLUMNS = (
    *("best_rate", "best_rate_low", "best_rate_high", "loss", "loss_low", "loss_high"),
    *("at_edge", "convex", "rates", "fitted_from", "fitted_to", "replicates", "degrees"),
)
"""The columns of ``best_rate_table`` beside the other axes."""

LEAST = 1e-6
"""Excess losses below this (nats) are all told as this: they are noise around the floor."""

ASIDE, ASIDE_ALONE = 1, 2
"""Rates that are fitted on either side of the lowest median: with several replicates, and with one."""


def best_rate_table(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the best learning rate within each combination of the other axes, for a study on a grid; else no rows.

    ``best_rate`` and ``loss`` (nats per scored token; of text bits per byte) have their 95 % intervals, NaN where
    nothing tells them; ``replicates`` counts those that have finished at all fitted ``rates``, from ``fitted_from`` to
    ``fitted_to``, and ``degrees`` the degrees of freedom. ``at_edge``: the lowest median is at the first or last rate
    that trains, or the vertex is outside of the fitted ones, so that the best rate is only a bound; it is then the
    nearest fitted rate. ``convex`` is false where the parabola has no minimum, or fewer than three rates can be fitted;
    then the row tells the rate of the lowest median, and no interval.
    """
    rows = [{**values, **_row(group)} for values, group in grid_groups(study, trials)]
    return pd.DataFrame(rows, columns=[*(path for path in study.axes if path != LEARNING_RATE), *COLUMNS])


def _row(group: pd.DataFrame) -> dict[str, Any]:
    log_loss = np.log(group["capped_excess"].clip(lower=LEAST))
    loss = group.assign(log_loss=log_loss).pivot(index="replicate", columns=LEARNING_RATE, values="log_loss")
    at_cap = (group["ended"] != "budget") | (group["capped_excess"] >= group["initial_loss"] - group["floor"])
    trains = ~at_cap.groupby(group[LEARNING_RATE]).any()
    usable = loss.loc[:, trains[loss.columns].to_numpy()]
    if not usable.shape[1]:
        return _told(float(loss.median().idxmin()), loss, at_edge=True)
    rates = usable.columns.to_numpy(dtype=np.float64)
    best = int(usable.median().to_numpy().argmin())
    at_edge = best in (0, len(rates) - 1)
    aside = ASIDE if len(loss) > 1 else ASIDE_ALONE
    window = _window(len(rates), best, aside)
    fitted = usable.iloc[:, window].dropna()
    if len(window) < 3 or not len(fitted):
        return _told(float(rates[best]), fitted, at_edge=at_edge)
    x_P = np.log10(rates / rates[best])
    found = parabola(x_P[window], fitted.to_numpy(dtype=np.float64))
    if not found.convex:
        return _told(float(rates[best]), fitted, at_edge=at_edge)
    found = _checked(found, x_P, usable, window)
    lowest = min(max(found.vertex, x_P[window[0]]), x_P[window[-1]])
    place = min(max(found.vertex + found.shift, x_P[window[0]]), x_P[window[-1]])
    first, last = (math.log10(rate / rates[best]) for rate in (loss.columns[0], loss.columns[-1]))
    ends = (math.nan if math.isnan(end) else min(max(end, first), last) for end in found.vertex_interval())
    low, high = (float(rates[best] * 10**end) for end in ends)
    return {
        "best_rate": float(rates[best] * 10**place),
        "best_rate_low": low,
        "best_rate_high": high,
        "loss": math.exp(found.at(lowest)),
        **dict(zip(("loss_low", "loss_high"), _losses(found.height_interval(lowest), group), strict=True)),
        "at_edge": at_edge or lowest != found.vertex,
        "convex": True,
        **_fitted(fitted),
        "degrees": found.degrees,
    }


def _losses(interval: Interval, group: pd.DataFrame) -> Interval:
    """Return an interval of log losses as losses, at most the initial one."""
    if math.isnan(interval.low):
        return interval
    most = float((group["initial_loss"] - group["floor"]).max())
    low, high = (math.exp(min(end, math.log(most))) for end in interval)
    return Interval(low, high)


def _window(count: int, best: int, aside: int) -> list[int]:
    """Return the places of the rates to fit; at an edge, the nearest ones that make three."""
    near = [i for i in range(best - aside, best + aside + 1) if 0 <= i < count]
    if len(near) < 3:
        first = min(max(best - 1, 0), max(count - 3, 0))
        near = list(range(first, min(first + 3, count)))
    return near


def _checked(found: Parabola, x_P: Floats, usable: pd.DataFrame, window: list[int]) -> Parabola:
    """Return the parabola allowing for a loss that is none.

    With several replicates it is held against the one through the better one of the next rates, with one replicate
    against the one through the three rates in the middle; without such rates against itself.
    """
    step = float(x_P[window[-1]] - x_P[window[0]]) / (len(window) - 1)
    mean = usable.mean().to_numpy()
    seen = float(mean[window].min())
    if found.degrees and len(usable) == 1:
        three = window[1:4] if len(window) == 5 else window[:3]
        other = coefficients(x_P[three], usable.to_numpy(dtype=np.float64)[:, three])[0]
        return allowing_for(found, other, step, seen)
    beside = [place for place in (window[0] - 1, window[-1] + 1) if 0 <= place < len(mean)]
    if not beside:
        return allowing_for(found, found.mean, step, seen)
    four = [*window, min(beside, key=lambda place: mean[place])]
    loss_R4 = usable.iloc[:, four].dropna().to_numpy(dtype=np.float64)
    return allowing_for(found, through_fourth(x_P[four], loss_R4) if len(loss_R4) else found.mean, step, seen)


def _fitted(fitted: pd.DataFrame) -> dict[str, Any]:
    columns = fitted.columns
    return {
        "rates": len(columns),
        "fitted_from": float(columns[0]),
        "fitted_to": float(columns[-1]),
        "replicates": len(fitted),
    }


def _told(rate: float, fitted: pd.DataFrame, *, at_edge: bool) -> dict[str, Any]:
    """Return the row where no parabola tells: the rate of the lowest median, and the loss there."""
    numbers = dict.fromkeys(COLUMNS[:6], math.nan)
    loss = math.exp(float(fitted[rate].mean()))
    told = {"best_rate": rate, "loss": loss, "at_edge": at_edge, "convex": False}
    return {**numbers, **told, **_fitted(fitted), "degrees": 0}
