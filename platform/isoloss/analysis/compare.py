"""Two studies side by side: how much higher the second ends, cell by cell, and what became of outcomes and rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from isoloss.analysis.compare_cells import cells_table
from isoloss.analysis.compare_rates import groups_table
from isoloss.analysis.definitions import ABSENT, differing
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.table import axis_value, trials_table
from isoloss.config.axes import Choice
from isoloss.config.base import Part
from isoloss.config.search import Boundary
from isoloss.errors import UsageError
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.study import Study, Trial

MACHINE = ("simulated", "device", "dtype", "compile", "threads", "hardware", "torch")
"""What of the machine decides a trial's numbers beside its key."""


@dataclass(frozen=True)
class Comparison:
    """Two studies side by side; every difference is the second (``right``) less the first (``left``).

    ``axes`` tell the shared cells apart; ``paired`` says whether replicates are. ``finished`` counts the trials of
    each. ``differing`` holds what differs in the two definitions and machines (``definitions.differing``), ``cells`` a
    row a shared cell (``cells_table``), ``groups`` a row a combination of the axes other than the learning rate
    (``groups_table``), ``bands`` a row a place and level (``bands_table``); None where not both searched a boundary
    over the same axes, or one has no map yet.
    """

    left: Study
    right: Study
    axes: tuple[str, ...]
    paired: bool
    finished: tuple[int, int]
    differing: pd.DataFrame
    cells: pd.DataFrame
    groups: pd.DataFrame
    bands: pd.DataFrame | None

    def study_of(self, path: str) -> Study:
        """Return a study that varies this axis, the first if it does."""
        return self.left if path in self.left.axes else self.right


def compared(left: tuple[Study, Ledger], right: tuple[Study, Ledger]) -> Comparison:
    """Compare two studies with what each has finished.

    Raises UsageError when they have no axis in common, or measure their loss in different units.
    """
    one, other = left[0], right[0]
    _check(one, other)
    axes = tuple(dict.fromkeys((*one.axes, *other.axes)))
    of_left, of_right = _places(*left, axes), _places(*right, axes)
    here = _ordered(_across(of_left, of_right, axes), (one, other), axes)
    there = _ordered(_across(of_right, of_left, axes), (one, other), axes)
    paired = one.seed == other.seed
    bands = None
    if isinstance(one.search, Boundary) and isinstance(other.search, Boundary):
        # Optuna and scipy take a second to load: only these studies pay for them.
        from isoloss.analysis.compare_bands import bands_table

        bands = bands_table(left, right)
    return Comparison(
        left=one,
        right=other,
        axes=axes,
        paired=paired,
        finished=(len(of_left), len(of_right)),
        differing=pd.concat([differing(one, other), _machines((left[1], of_left), (right[1], of_right))]),
        cells=cells_table(here, there, axes, paired=paired),
        groups=groups_table(here, there, axes, _rates(one, other), paired=paired),
        bands=bands,
    )


def _check(left: Study, right: Study) -> None:
    if not set(left.axes) & set(right.axes):
        varied = [f"{one.name} varies {', '.join(one.axes) or 'nothing'}" for one in (left, right)]
        raise UsageError(f"{' and '.join(varied)}: they have no axis in common, so that no cells can be compared")
    if left.task.unit_in_full != right.task.unit_in_full:
        raise UsageError(
            f"{left.name} measures its loss in {left.task.unit_in_full} and {right.name} in "
            f"{right.task.unit_in_full}: losses can be compared in one unit only"
        )


def _places(study: Study, ledger: Ledger, axes: Sequence[str]) -> pd.DataFrame:
    """Return the finished trials with their values at ``axes``, varied or not; None where a trial has no such field."""
    table = trials_table(study, ledger)
    trials = {trial.key: trial for _, _, trial in members(study, ledger.claims())}
    for path in axes:
        table[path] = pd.Series([_value(trials[key], path) for key in table["key"]], dtype=object)
    return table


def _ordered(table: pd.DataFrame, studies: tuple[Study, Study], axes: Sequence[str]) -> pd.DataFrame:
    """Return the trials in the order of their cells: numbers rising, labels as a study lists them."""
    listed = {path: [value for one in studies for value in _listed(one, path)] for path in axes}

    def place(path: str, value: Any) -> float:
        if isinstance(value, (int, float)):
            return value
        return listed[path].index(value) if value in listed[path] else len(listed[path])

    order = [tuple(map(place, axes, cell)) for cell in zip(*(table[path] for path in axes), strict=True)]
    return table.iloc[sorted(range(len(table)), key=order.__getitem__)].reset_index(drop=True)


def _listed(study: Study, path: str) -> list[Any]:
    axis = study.axes.get(path)
    return [axis_value(value) for value in axis.values] if isinstance(axis, Choice) else []


def _value(trial: Trial, path: str) -> Any:
    now: Any = trial
    for name in path.split("."):
        if not isinstance(now, Part) or name not in type(now).model_fields:
            return None
        now = getattr(now, name)
    return axis_value(now)


def _across(table: pd.DataFrame, other: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Return the trials once for each value that the other study has on an axis which no trial here has.

    So a study of a full head stands beside every rank of one that varies ``head.rank``.
    """
    for path in axes:
        if len(table) and table[path].isna().all():
            table = table.drop(columns=path).merge(other[[path]].drop_duplicates(), how="cross")
    return table


def _machines(left: tuple[Ledger, pd.DataFrame], right: tuple[Ledger, pd.DataFrame]) -> pd.DataFrame:
    """Return what differs in how the first trial of each was computed, as rows of ``differing``."""
    if not len(left[1]) or not len(right[1]):
        return pd.DataFrame()
    one, other = (ledger.result(table["key"].iloc[0]).machine for ledger, table in (left, right))
    return pd.DataFrame(
        {"path": f"machine.{name}", "left": str(one.get(name, ABSENT)), "right": str(other.get(name, ABSENT))}
        for name in MACHINE
        if one.get(name) != other.get(name)
    )


def _rates(left: Study, right: Study) -> list[float]:
    """Return the learning rates that both studies list, rising; none where one of them does not vary or list it."""
    listed = [one.listed(LEARNING_RATE) or () if LEARNING_RATE in one.axes else () for one in (left, right)]
    return sorted(set(map(axis_value, listed[0])) & set(map(axis_value, listed[1])))
