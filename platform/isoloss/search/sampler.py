"""Any Optuna sampler by name, asked for the next cell; its study lives in memory and is refilled from the ledger."""

from __future__ import annotations

import math
import warnings
from typing import Any

import optuna
from optuna.trial import TrialState

from isoloss.config.base import canonical_json
from isoloss.config.search import Optuna
from isoloss.result import Result
from isoloss.search import parameters
from isoloss.search.plan import Proposal, SearchError
from isoloss.study import Study, Trial

SMALLEST = 1e-6
"""Excess losses below this (nats) are all told as this: their logarithm would drown the rest."""

MOST_REPEATS = 64
"""Times in a row that a sampler may return to tried cells before its search counts as finished."""


class SamplerPlan:
    """Asks ``search.cells`` cells of an Optuna sampler, each tried in every replicate.

    The objective is log10 of the capped excess loss, finite for every outcome. Raises SearchError when Optuna has no
    sampler of the name or it refuses the options.
    """

    note = ""

    def __init__(self, study: Study, search: Optuna) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study, self.search = study, search
        self.total = search.cells * study.replicates
        self._optuna = optuna.create_study(sampler=_sampler(search, study.seed))
        self._distributions = parameters.distributions(study)
        self._numbers: dict[str, int] = {}  # Optuna's trial of each claimed trial
        self._cells: set[str] = set()
        self._queue: list[Proposal] = []

    def claimed(self, cell: dict[str, Any], trial: Trial) -> None:
        self._cells.add(canonical_json(cell))
        if trial.key not in self._numbers:
            self._optuna.add_trial(parameters.running(self.study, cell, self._distributions))
            self._numbers[trial.key] = len(self._optuna.get_trials(deepcopy=False)) - 1
        # A new cell brings its other replicates, also those that an interrupted session did not get to.
        self._queue = [one for one in self._queue if one[1].key != trial.key]
        if trial.replicate == 0:
            others = [(cell, self.study.trial(cell, replicate)) for replicate in range(1, self.study.replicates)]
            self._queue += [one for one in others if one[1].key not in self._numbers]

    def finished(self, trial: Trial, result: Result) -> None:
        value = math.log10(max(result.curve.capped_excess, SMALLEST))
        self._optuna.tell(self._numbers[trial.key], value)

    def gave_up(self, trial: Trial) -> None:
        pass  # it runs on, as far as the sampler knows, until another session finishes it

    def next(self) -> Proposal | None:
        if self._queue:
            return self._queue[0]
        if len(self._cells) >= self.search.cells:
            return None
        for _ in range(MOST_REPEATS):
            asked = self._optuna.ask(self._distributions)
            cell = parameters.cell(self.study, asked.params)
            trial = self.study.trial(cell, 0)
            if trial.key not in self._numbers:
                self._numbers[trial.key] = asked.number
                return cell, trial
            # The sampler came back to a cell that was tried: its loss is known, or will be told by the first trial.
            twin = self._optuna.get_trials(deepcopy=False)[self._numbers[trial.key]]
            known = twin.state == TrialState.COMPLETE
            self._optuna.tell(asked, twin.value if known else None, state=None if known else TrialState.FAIL)
        return None

    def course(self) -> None:
        return None


def _sampler(search: Optuna, seed: int) -> optuna.samplers.BaseSampler:
    names = [name for name in optuna.samplers.__all__ if name.endswith("Sampler") and name != "BaseSampler"]
    if search.sampler not in names:
        raise SearchError(f"search.sampler: Optuna has no {search.sampler!r}; it has {', '.join(names)}")
    try:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            sampler: optuna.samplers.BaseSampler = getattr(optuna.samplers, search.sampler)(seed=seed, **search.options)
    except (TypeError, ValueError, ImportError) as error:
        raise SearchError(f"search.options: {search.sampler} refuses {search.options or 'a seed'}: {error}") from None
    return sampler
