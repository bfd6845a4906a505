"""The bands of two boundary searches: how far the ends of one lie from those of the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from isoloss.analysis.boundary import findings, others_of
from isoloss.analysis.surface import records
from isoloss.run.ledger import Ledger
from isoloss.study import Study

DEFINITION = (
    "Of two boundary searches: log10 of the smallest (lowest) and largest (highest) learning rate at which a share "
    "`level` of seeds converges in the second study, less that in the first, in decades, at the same place of the "
    "other axes. The 90 % credible interval adds the halves of the two maps' own intervals in quadrature, as for "
    "independent maps: exact where they are normal, too wide where the studies share noise. Where an end is only a "
    "bound in either study, the difference is uncertain beyond its interval."
)
END_COLUMNS = ("left", "right", "difference", "from", "to", "is_bound")
COLUMNS = (
    "level",
    "left_closed",
    "right_closed",
    *(f"{end}_{c}" for end in ("lowest", "highest") for c in END_COLUMNS),
)
"""The columns of ``bands_table`` beside the other axes."""


def bands_table(left: tuple[Study, Ledger], right: tuple[Study, Ledger]) -> pd.DataFrame | None:
    """Return the differences of two boundary searches' bands, one row a shared place of the other axes and level.

    ``lowest_left`` and ``lowest_right`` are the ends (learning rates), ``lowest_difference`` log10 of the second less
    the first, ``lowest_from`` and ``lowest_to`` its 90 % credible interval, ``lowest_is_bound`` whether either end is
    only a bound; likewise ``highest``. NaN where a band is closed. None where the studies have not the same axes, or
    one of them has no learning-rate axis, or no map yet.
    """
    if set(left[0].axes) != set(right[0].axes):
        return None
    one, other = findings(*left), findings(*right)
    if one is None or other is None or one.table is None or other.table is None:
        return None
    return differences(one.table, other.table, others_of(left[0]))


def differences(left: pd.DataFrame, right: pd.DataFrame, others: tuple[str, ...]) -> pd.DataFrame:
    """Return ``bands_table`` of two tables of ``boundary.boundary_table`` over the same ``others``."""
    place = [*others, "level"]
    of_right = {tuple(row[name] for name in place): row for row in records(right)}
    rows = []
    for one in records(left):
        other = of_right.get(tuple(one[name] for name in place))
        if other is not None:
            rows.append(
                {
                    **{name: one[name] for name in place},
                    "left_closed": one["closed"],
                    "right_closed": other["closed"],
                    **_end("lowest", one, other),
                    **_end("highest", one, other),
                }
            )
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


def _end(name: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    one, one_from, one_to = (math.log10(left[f"{name}{column}"]) for column in ("", "_from", "_to"))
    other, other_from, other_to = (math.log10(right[f"{name}{column}"]) for column in ("", "_from", "_to"))
    values = (
        left[name],
        right[name],
        other - one,
        other - one - math.hypot(other - other_from, one_to - one),
        other - one + math.hypot(other_to - other, one - one_from),
        bool(left[f"{name}_is_bound"] or right[f"{name}_is_bound"]),
    )
    return {f"{name}_{column}": value for column, value in zip(END_COLUMNS, values, strict=True)}
