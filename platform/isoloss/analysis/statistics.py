"""Intervals over replicates, and the correction of several tests at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DRAWS = 10_000
"""Resamples of a bootstrap."""


class Interval(NamedTuple):
    """The ends of a confidence interval; NaN where the values allow none."""

    low: float
    high: float


NONE = Interval(math.nan, math.nan)


def student_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return Student's t interval of the mean; NaN for fewer than two values, or if all are equal."""
    from scipy.stats import t

    if len(values) < 2 or min(values) == max(values):
        return NONE
    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return Interval(mean - half, mean + half)


def bootstrap_interval(
    replicates: Sequence[Any] | Floats,
    statistic: Callable[[Floats], Floats] = lambda resamples: resamples.mean(axis=1),
    level: float = 0.95,
) -> Interval:
    """Return the percentile interval of a statistic over resampled replicates, widened for their small number.

    ``statistic`` maps resamples, of shape draws x replicates (x what one replicate holds), to one value a draw. A plain
    percentile interval is too narrow by about sqrt((n - 1) / n) and by the normal's in place of Student's quantile;
    this one reads its percentiles further out, by as much (Hesterberg 2015, section 5.3). NaN where fewer replicates
    than that needs, six at 95 %, leave no draws beyond the percentiles. The draws are the same in every call.
    """
    from scipy.stats import norm, t

    values = np.asarray(replicates, dtype=np.float64)
    count = len(values)
    if count < 2:
        return NONE
    tail = float(norm.cdf(-math.sqrt(count / (count - 1)) * t.ppf((1 + level) / 2, count - 1)))
    if tail < count ** -(count - 1):  # n^(1-n): the chance that all draws are one and the same replicate
        return NONE
    draws = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    found = statistic(values[draws])
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(float(low), float(high))


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979); NaN stays NaN and counts for none."""
    known = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    corrected, largest = [math.nan] * len(p), 0.0
    for i, (value, place) in enumerate(known):
        largest = corrected[place] = min(1.0, max(largest, value * (len(known) - i)))
    return corrected
