"""Paired comparisons: by how much arms of a study end above the first one in each replicate."""

from __future__ import annotations

import math
from statistics import mode
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from isoloss.analysis.difference import difference
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.statistics import NONE, bootstrap_interval, holm
from isoloss.analysis.surface import split
from isoloss.analysis.tuning import best_of_others, listed_rates, losses_by_rate, on_grid, regret
from isoloss.config.axes import Choice
from isoloss.config.base import Part, value_label
from isoloss.study import Study

COLUMNS = (
    *("arm", "reference", "learning_rate", "reference_learning_rate", "pairs"),
    *("difference", "low", "high", "boot_low", "boot_high", "d_z", "higher", "p", "p_holm"),
)

DEFINITION = (
    "The difference is an arm's final excess loss, at most the initial one, less that of the first arm in the same "
    "replicate, averaged over replicates; these share all random streams, so that their differences are paired. Each "
    "arm stands at its best learning rate, which a replicate takes from the others: the lowest of their medians. "
    "Intervals are at 95 %, each for its row alone: by Student's t over replicates, and (boot) by the bootstrap over "
    "replicates, widened for their small number (Hesterberg 2015), from six on; both made longer by as much as another "
    "rate of either arm may be better (at 80 % by Student's t). d_z is the mean of the differences "
    "over their standard deviation (Cohen), p that of the two-sided paired t-test, p_holm the same corrected for the "
    "number of arms (Holm 1979)."
)


def arms(study: Study) -> tuple[str, list[str]] | None:
    """Return the axis whose values are compared, and their labels: the map's axis down if it lists parts, else None."""
    if not study.axes or study.replicates == 1:
        return None
    down = study.map_axes[1]
    axis = study.axes[down]
    if not isinstance(axis, Choice) or not all(isinstance(value, Part) for value in axis.values):
        return None
    return down, [value_label(value) for value in axis.values]


def paired_table(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    """Return each arm's loss less the first arm's, within each combination of the other axes.

    Replicates share all random streams, so that their differences are paired. Each arm is read at its best learning
    rate, chosen for a replicate by the median of the others, so that no loss chooses its own rate;
    ``learning_rate`` is the one chosen most often. Only replicates that finished at every learning rate count.
    ``difference`` is the mean over replicates of the final excess loss, capped as in maps; ``low`` and ``high`` its
    95 % interval by Student's t, ``boot_low`` and ``boot_high`` by the bootstrap (NaN below six pairs), both made
    longer by the ``regret`` of either arm, since either may do better at another rate; ``d_z`` Cohen's effect size,
    the mean over the standard deviation of the differences; ``higher`` how many are above 0;
    ``p`` of the two-sided t-test, and ``p_holm`` corrected for all arms of a combination (Holm 1979). NaN where fewer
    than two pairs are finished or all differences are equal. Empty where a search scatters trials along an axis, so
    that no two arms meet at one place.
    """
    down, labels = arms(study) or (None, [])
    others = tuple(path for path in study.axes if path not in (down, LEARNING_RATE))
    rows: list[dict[str, Any]] = []
    if down is not None and len(trials) and on_grid(study):
        rates = listed_rates(study)
        for values, group in split(study, trials, others):
            reference, *of_arms = (_arm(label, group[group[down] == label], rates) for label in labels)
            against = [_compared(arm, reference) for arm in of_arms]
            for row, p in zip(against, holm([row["p"] for row in against]), strict=True):
                rows.append({**values, **row, "p_holm": p})
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


class _Arm(NamedTuple):
    """What an arm loses in each replicate at its best learning rate, which is none where the rate does not vary."""

    label: str
    losses: dict[int, float]
    rate: float | None
    regret: float


def _arm(label: str, trials: pd.DataFrame, rates: list[float] | None) -> _Arm:
    if rates is None:
        return _Arm(label, dict(zip(trials["replicate"], trials["capped_excess"], strict=True)), None, 0.0)
    loss = losses_by_rate(trials, rates)
    chosen = best_of_others(loss)
    losses = {replicate: float(loss.loc[replicate, rate]) for replicate, rate in chosen.items()}
    return _Arm(label, losses, mode(chosen.values()) if chosen else None, regret(loss))


def _compared(arm: _Arm, reference: _Arm) -> dict[str, Any]:
    above = [
        arm.losses[replicate] - reference.losses[replicate] for replicate in arm.losses if replicate in reference.losses
    ]
    tested = difference(reference.losses, arm.losses, paired=True)
    known = not math.isnan(tested["low"])
    boot = bootstrap_interval(above) if known else NONE
    return {
        "arm": arm.label,
        "reference": reference.label,
        "learning_rate": arm.rate,
        "reference_learning_rate": reference.rate,
        "pairs": len(above),
        "difference": tested["difference"],
        "low": tested["low"] - arm.regret,
        "high": tested["high"] + reference.regret,
        "boot_low": boot.low - arm.regret,
        "boot_high": boot.high + reference.regret,
        "d_z": tested["difference"] / float(np.std(above, ddof=1)) if known else math.nan,
        "higher": sum(value > 0 for value in above),
        "p": tested["p"],
    }
