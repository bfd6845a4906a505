"""The mean difference of two sides over replicates, paired where these share their random streams."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from statistics import fmean

from isoloss.analysis.statistics import student_interval

Losses = Mapping[int, float]
"""A number of each replicate."""


def difference(left: Losses, right: Losses, *, paired: bool) -> dict[str, float]:
    """Return means (``left``, ``right``), ``difference``, ``low`` and ``high`` (95 %), ``p`` over replicates.

    The difference is the second mean less the first. ``paired`` takes replicates that both have, and Student's t;
    otherwise all, and Welch's. NaN where there are too few replicates, or no spread.
    """
    from scipy.stats import ttest_1samp, ttest_ind

    if paired:
        shared = sorted(set(left) & set(right))
        left, right = ({replicate: one[replicate] for replicate in shared} for one in (left, right))
    nan = math.nan
    if not left or not right:
        return dict.fromkeys(("left", "right", "difference", "low", "high", "p"), nan)
    means = fmean(left.values()), fmean(right.values())
    row = {"left": means[0], "right": means[1], "difference": means[1] - means[0], "low": nan, "high": nan, "p": nan}
    if paired:
        above = [right[replicate] - left[replicate] for replicate in left]
        low, high = student_interval(above)
        if not math.isnan(low):
            row |= {"low": low, "high": high, "p": float(ttest_1samp(above, 0.0).pvalue)}
    elif min(len(left), len(right)) > 1 and (len(set(left.values())) > 1 or len(set(right.values())) > 1):
        with warnings.catch_warnings():
            # One group without spread, such as trials that all count with their initial loss, is no cause for alarm.
            warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
            test = ttest_ind(list(right.values()), list(left.values()), equal_var=False)
        interval = test.confidence_interval(0.95)
        row |= {"low": float(interval.low), "high": float(interval.high), "p": float(test.pvalue)}
    return row
