"""A study's axes as Optuna's parameters, and its cells as their values."""

from __future__ import annotations

from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from isoloss.config.axes import Choice, Log
from isoloss.config.base import canonical_json, plain
from isoloss.study import Cell, Study


def distributions(study: Study) -> dict[str, BaseDistribution]:
    """Return the distribution of each axis: a list where the study lists its values, else a range."""
    return {path: _distribution(study, path) for path in study.axes}


def _distribution(study: Study, path: str) -> BaseDistribution:
    listed = study.listed(path)
    if listed is not None:
        return CategoricalDistribution([_label(value) for value in listed])
    axis = study.axes[path]
    assert not isinstance(axis, Choice)
    low, high = (study.cell({path: end})[path] for end in (axis.low, axis.high))
    if isinstance(low, int):
        return IntDistribution(low, high, log=isinstance(axis, Log))
    return FloatDistribution(low, high, log=isinstance(axis, Log))


def params(study: Study, cell: Cell) -> dict[str, Any]:
    """Return the parameters of a cell."""
    return {path: _label(value) if study.listed(path) is not None else value for path, value in cell.items()}


def running(study: Study, cell: Cell, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    """Return a running trial of a cell, for an Optuna study that is told of what was claimed before."""
    return create_trial(state=TrialState.RUNNING, params=params(study, cell), distributions=distributions)


def cell(study: Study, params: dict[str, Any]) -> dict[str, Any]:
    """Return the cell of some parameters."""
    values = {}
    for path in study.axes:
        listed = study.listed(path)
        values[path] = (
            params[path] if listed is None else next(value for value in listed if _label(value) == params[path])
        )
    return study.cell(values)


def _label(value: Any) -> Any:
    value = plain(value)
    return value if isinstance(value, (bool, int, float, str)) else canonical_json(value)
