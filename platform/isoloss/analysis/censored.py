"""The mean of values of which some are only known to exceed a bound (Tobin 1958)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from isoloss.analysis.statistics import NONE, Interval

Floats = npt.NDArray[np.float64]

FARTHEST = 64.0
"""How far an end is looked for, in standard deviations of all values."""

SAME = 1e-6
"""Known values that differ by less, in the same unit, have no spread to tell a likelihood by."""


def censored_mean(known: Floats, bounds: Floats) -> tuple[float, Interval]:
    """Return the mean of normal values by maximum likelihood, and its 95 % profile-likelihood interval.

    ``known`` are the values seen, ``bounds`` what the others exceed. The profile is cut where it would be for Student's
    t with n - 1 degrees of freedom, n (known and bounds) values, so that without bounds this is Student's interval. NaN
    where fewer than two known values differ; an end is NaN where the likelihood never falls so far.
    """
    from scipy.optimize import brentq, minimize_scalar
    from scipy.stats import t

    everything = np.concatenate([known, bounds])
    count, centre, scale = len(everything), float(everything.mean()), float(everything.std())
    if len(known) < 2 or np.ptp(known) <= SAME * scale:
        return math.nan, NONE
    known, bounds = (known - centre) / scale, (bounds - centre) / scale
    # The mean lies above the values at hand, in which censored ones stand at their bounds.
    best = minimize_scalar(lambda mean: -_profile(mean, known, bounds), bounds=(-0.1, 100.0), method="bounded")
    depth = count / 2 * math.log1p(float(t.ppf(0.975, count - 1)) ** 2 / (count - 1))

    def below(mean: float) -> float:
        return -best.fun - depth - _profile(mean, known, bounds)

    low, high = (_end(below, float(best.x), side, brentq) for side in (-1.0, 1.0))
    return centre + scale * float(best.x), Interval(centre + scale * low, centre + scale * high)


def _end(below: Callable[[float], float], best: float, side: float, root: Callable[..., float]) -> float:
    """Return where the profile crosses the cut on one side of its maximum; NaN if it does not."""
    step = 1.0
    while below(best + side * step) < 0:
        step *= 2
        if step > FARTHEST:
            return math.nan
    return float(root(below, best, best + side * step))


def _profile(mean: float, known: Floats, bounds: Floats) -> float:
    """Return the largest log-likelihood over the precision 1/sigma, in which it is concave (Olsen 1978)."""
    from scipy.optimize import brentq
    from scipy.special import erfcx, log_ndtr

    count, squares, over = len(known), float(((known - mean) ** 2).sum()), mean - bounds

    def slope(log_precision: float) -> float:
        precision = math.exp(log_precision)
        hazard = math.sqrt(2 / math.pi) / erfcx(-precision * over / math.sqrt(2))  # normal density over distribution
        return count - precision**2 * squares + precision * float((over * hazard).sum())

    # Values are in units of their spread, so that this range holds every precision of interest.
    log_precision = brentq(slope, -20.0, 20.0)
    precision = math.exp(log_precision)
    return count * log_precision - precision**2 * squares / 2 + float(log_ndtr(precision * over).sum())
