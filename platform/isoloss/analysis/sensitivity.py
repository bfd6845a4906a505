"""How much a learning rate matters: Wortsman's sensitivity, and the band of learning rates that converge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import pandas as pd

from isoloss.analysis.statistics import Interval, bootstrap_interval, student_interval
from isoloss.analysis.surface import scattered, split
from isoloss.analysis.table import axis_value
from isoloss.config.search import Boundary, Grid
from isoloss.outcome import Outcome
from isoloss.study import Study

LEARNING_RATE = "optimizer.learning_rate"
OVER_GRID, OVER_LOG = "mean over the grid", "trapezoid in log learning rate"
BAND_ENDS = ("band_low", "band_high", "band_low_is_bound", "band_high_is_bound", "band_gaps")

DEFINITION = (
    "Learning-rate sensitivity (Wortsman et al. 2023): the mean of min(loss, loss at initialisation) above the lowest "
    "loss, over the stated learning rates; of each replicate by itself, then averaged. On a grid the mean is over its "
    "points, else it is a trapezoid in the logarithm of the learning rate, between those tried. The 95 % interval is "
    "Student's t over replicates, wider by sqrt((n + 1) / (n - 1)), since few replicates may by chance stand on one "
    "side of the learning rate at which training fails; from six replicates on, there is a bootstrap interval too "
    "(Hesterberg 2015). Neither goes below 0, where no sensitivity is."
)

COLUMNS = (
    *("learning_rate_low", "learning_rate_high", "learning_rates", "method", "replicates", "sensitivity"),
    *("sensitivity_sd", "best_learning_rate", "lowest_excess", "band", *BAND_ENDS),
    *("sensitivity_low", "sensitivity_high", "sensitivity_boot_low", "sensitivity_boot_high"),
)
"""The columns of ``sensitivity_table`` beside the group's axes."""


def why_not(study: Study) -> str:
    """Return why the study has no learning-rate sensitivity, or an empty text when it has one."""
    if LEARNING_RATE not in study.axes:
        return f"the study has no axis {LEARNING_RATE!r}"
    if isinstance(study.search, Boundary):
        return "a boundary search places its trials where convergence is least known, not evenly over learning rates"
    others = [path for path in study.axes if path != LEARNING_RATE and scattered(study, path)]
    if others:
        return f"{', '.join(map(repr, others))} varies freely with the learning rate, so that no group holds it fixed"
    return ""


def sensitivity_table(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a group of trials that differ in learning rate and replicate alone.

    ``sensitivity`` is E[min(loss, loss at initialisation) - lowest loss] over the learning rates in
    [``learning_rate_low``, ``learning_rate_high``], in nats per scored token (Wortsman et al. 2023): the mean over
    the grid's points, or, where a search scatters them, by trapezoids in the logarithm. A trial that training ended
    before its budget counts with its loss at initialisation. It is computed for each replicate by itself; the row
    gives mean and standard deviation over the ``replicates`` whose learning rates have all finished (for a scattered
    search, at least two), and NaN when there is none. ``sensitivity_low`` and ``sensitivity_high`` are its 95 %
    interval by ``widened_interval`` (NaN below two replicates), ``sensitivity_boot_low`` and ``sensitivity_boot_high``
    by bootstrap (NaN below six). ``lowest_excess`` and ``best_learning_rate`` are those of the
    lowest median over replicates, of equal ones the smallest learning rate's.

    ``band`` is ``open`` when some learning rate converges, in every replicate finished there; then ``band_low`` and
    ``band_high`` are the smallest and the largest such. An end is only a bound where the range ends, or where no
    replicate of the next learning rate has finished. ``band_gaps`` counts the learning rates between the ends that
    did not converge. ``band`` is ``closed`` when all have finished and none converges, else ``unknown``.

    Raises ValueError when ``why_not`` has a reason.
    """
    reason = why_not(study)
    if reason:
        raise ValueError(f"no learning-rate sensitivity: {reason}")
    groups = tuple(path for path in study.axes if path != LEARNING_RATE)
    whole_grid = isinstance(study.search, Grid)
    declared = sorted({axis_value(cell[LEARNING_RATE]) for cell in study.cells()}) if whole_grid else []
    rows = [{**values, **_group(rows, declared)} for values, rows in split(study, table, groups) if len(rows)]
    return pd.DataFrame(rows, columns=[*groups, *COLUMNS])


def _group(rows: pd.DataFrame, declared: list[float]) -> dict[str, Any]:
    rates = declared or sorted(rows[LEARNING_RATE].unique().tolist())
    of_replicate = [
        sensitivity(one[LEARNING_RATE].tolist(), one["capped_excess"].tolist(), evenly=bool(declared))
        for _, one in rows.sort_values(LEARNING_RATE).groupby("replicate")
        if len(one) >= (len(declared) or 2)
    ]
    excess = {rate: median(found["capped_excess"]) for rate, found in rows.groupby(LEARNING_RATE, sort=True)}
    best = min(excess, key=lambda rate: excess[rate])
    converged = {
        rate: bool((found["outcome"] == str(Outcome.CONVERGED)).all()) for rate, found in rows.groupby(LEARNING_RATE)
    }
    return {
        "learning_rate_low": rates[0],
        "learning_rate_high": rates[-1],
        "learning_rates": len(rates),
        "method": OVER_GRID if declared else OVER_LOG,
        "replicates": len(of_replicate),
        "sensitivity": fmean(of_replicate) if of_replicate else math.nan,
        "sensitivity_sd": stdev(of_replicate) if len(of_replicate) > 1 else math.nan,
        "best_learning_rate": best,
        "lowest_excess": excess[best],
        **band(rates, [converged.get(rate) for rate in rates]),
        **dict(zip(("sensitivity_low", "sensitivity_high"), _from_zero(widened_interval(of_replicate)), strict=True)),
        **dict(zip(("sensitivity_boot_low", "sensitivity_boot_high"), bootstrap_interval(of_replicate), strict=True)),
    }


def _from_zero(interval: Interval) -> Interval:
    return interval if math.isnan(interval.low) else Interval(max(interval.low, 0.0), interval.high)


def widened_interval(values: Sequence[float]) -> Interval:
    """Return Student's t interval of the mean, wider by sqrt((n + 1) / (n - 1)).

    Where a seed decides whether the last learning rates train, values have two heaps, and a few that all come from one
    of them look too much alike: plain t intervals then cover the truth in 89 to 95 % of studies.
    """
    low, high = student_interval(values)
    if math.isnan(low):
        return Interval(low, high)
    middle, half = (low + high) / 2, (high - low) / 2 * math.sqrt((len(values) + 1) / (len(values) - 1))
    return Interval(middle - half, middle + half)


def sensitivity(learning_rates: Sequence[float], capped_excess: Sequence[float], *, evenly: bool) -> float:
    """Return the mean of the capped excess loss above its lowest, over rising learning rates.

    ``evenly`` gives each learning rate the same weight; otherwise the mean is the integral over the logarithm by
    trapezoids, divided by its range.
    """
    above = np.asarray(capped_excess) - min(capped_excess)
    if evenly:
        return float(above.mean())
    log_rate = np.log(learning_rates)
    return float(np.trapezoid(above, log_rate) / (log_rate[-1] - log_rate[0]))


def band(rates: Sequence[float], converged: Sequence[bool | None]) -> dict[str, Any]:
    """Return the band's columns, from whether each of the rising learning rates converged (None: not known yet)."""
    inside = [i for i, yes in enumerate(converged) if yes]
    if not inside:
        state = "unknown" if None in converged else "closed"
        ends: tuple[float, float] = (math.nan, math.nan)
        return {"band": state, **dict(zip(BAND_ENDS, (*ends, False, False, 0), strict=True))}
    low, high = inside[0], inside[-1]
    return {
        "band": "open",
        "band_low": rates[low],
        "band_high": rates[high],
        "band_low_is_bound": low == 0 or converged[low - 1] is None,
        "band_high_is_bound": high == len(rates) - 1 or converged[high + 1] is None,
        "band_gaps": sum(yes is False for yes in converged[low:high]),
    }
