"""The plan: which trial comes next, given what the ledger holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from isoloss.config.search import Boundary, Grid, Optuna, Random
from isoloss.errors import UsageError
from isoloss.result import Result
from isoloss.search.boundary.course import Course
from isoloss.search.points import random_cells
from isoloss.study import Study, Trial

Proposal = tuple[dict[str, Any], Trial]
"""A cell and one of its trials."""


class SearchError(UsageError):
    """A study's search cannot be carried out; the message says what would be accepted."""


class Plan(Protocol):
    """Proposes trials; it is told of every claim and result of the ledger, those of earlier sessions first."""

    note: str
    """What was unusual about the last proposal, in words; empty when nothing was."""

    @property
    def total(self) -> int:
        """How many trials the study will have in the end, as far as is known now."""

    def claimed(self, cell: dict[str, Any], trial: Trial) -> None:
        """Take note that a trial has been claimed."""

    def finished(self, trial: Trial, result: Result) -> None:
        """Take note of a claimed trial's result."""

    def gave_up(self, trial: Trial) -> None:
        """Take note that a claimed trial will have no result in this session."""

    def next(self) -> Proposal | None:
        """Return a trial that has not been claimed, or None when nothing more is to come."""

    def course(self) -> Course | None:
        """Return how the search went so far, None where its end is known beforehand."""


class ListPlan:
    """A plan that is known beforehand: every trial of a list of cells, one replicate after another."""

    note = ""

    def __init__(self, proposals: list[Proposal]) -> None:
        self.total = len(proposals)
        self._claimed: set[str] = set()
        self._left: Iterator[Proposal] = iter(proposals)

    def claimed(self, cell: dict[str, Any], trial: Trial) -> None:
        self._claimed.add(trial.key)

    def finished(self, trial: Trial, result: Result) -> None:
        pass

    def gave_up(self, trial: Trial) -> None:
        pass

    def next(self) -> Proposal | None:
        return next((proposal for proposal in self._left if proposal[1].key not in self._claimed), None)

    def course(self) -> None:
        return None


def listed_trials(study: Study) -> list[Proposal]:
    """Return the trials of a grid or random study, each once."""
    if isinstance(study.search, Grid):
        return list(study.trials())
    assert isinstance(study.search, Random)
    cells = random_cells(study, study.search)
    proposals = [(cell, study.trial(cell, replicate)) for replicate in range(study.replicates) for cell in cells]
    return list({trial.key: (cell, trial) for cell, trial in proposals}.values())


def plan(study: Study) -> Plan:
    """Return the plan of a study's search; raises SearchError for a sampler or options that Optuna does not have."""
    if isinstance(study.search, Boundary):
        from isoloss.search.boundary_plan import BoundaryPlan

        return BoundaryPlan(study, study.search)
    if isinstance(study.search, Optuna):
        from isoloss.search.sampler import SamplerPlan

        return SamplerPlan(study, study.search)
    return ListPlan(listed_trials(study))
