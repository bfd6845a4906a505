"""The plan of a boundary search: asks the boundary sampler for one trial after another until the map is known."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import optuna
from optuna.trial import TrialState

from isoloss.config.base import canonical_json
from isoloss.config.search import Boundary
from isoloss.outcome import Curve, Outcome
from isoloss.result import Result
from isoloss.search import parameters
from isoloss.search.boundary import stopping
from isoloss.search.boundary.course import Check, Course, Reason
from isoloss.search.boundary.map import Seen
from isoloss.search.boundary.sampler import FALLBACK, FIT_ERRORS, BoundarySampler
from isoloss.search.boundary.space import Space
from isoloss.search.plan import Proposal
from isoloss.study import Study, Trial

log = logging.getLogger(__name__)

LEARNING_RATE = "optimizer.learning_rate"

Finished = tuple[dict[str, Any], Curve]
"""Cell and curve of a finished trial."""

SMALLEST = 1e-6
"""Excess losses below this (nats) are all told as this: they are noise around the floor."""


def excess(study: Study, curve: Curve) -> float:
    """Return log10 of the final excess loss over the study's threshold; +inf for a trial that came to nothing.

    With ``observation="outcome"``, -inf for every trial that converged and +inf for every other.
    """
    search = study.search
    outcome = study.verdict.judge(curve)
    if isinstance(search, Boundary) and search.observation == "outcome":
        return -math.inf if outcome == Outcome.CONVERGED else math.inf
    if outcome in (Outcome.DIVERGED, Outcome.NONFINITE):
        return math.inf
    return math.log10(max(curve.capped_excess, SMALLEST) / study.verdict.converged_below)


def settled(claims: Iterable[tuple[dict[str, Any], Curve | None, bool]]) -> list[Finished]:
    """Return the finished trials before the first claim that is still awaited (neither finished nor given up).

    Claims are (cell, curve, whether given up), in their order. What a search decides by is a function of these, so
    that it is the same whichever of the running trials finishes first.
    """
    found = []
    for cell, curve, given_up in claims:
        if curve is not None:
            found.append((cell, curve))
        elif not given_up:
            break
    return found


def seen(study: Study, space: Space, finished: Iterable[Finished]) -> Seen:
    """Return what finished (cell, curve) pairs of a study say of its boundary."""
    rows = [(parameters.params(study, cell), excess(study, curve)) for cell, curve in finished]
    return Seen(space.encode([point for point, _ in rows]), np.array([value for _, value in rows]))


def space_of(study: Study) -> Space:
    """Return the study's axes as the space of a boundary search."""
    return Space(parameters.distributions(study))


def along(study: Study) -> str | None:
    """Return the axis along which a band of converging values is told: the learning rate, where it varies."""
    return LEARNING_RATE if LEARNING_RATE in study.axes else None


class BoundaryPlan:
    """Asks trials of a boundary sampler, each of the replicate whose turn it is.

    What it proposes depends on the claimed and the finished trials in the order of their claims, and on nothing else.
    """

    def __init__(self, study: Study, search: Boundary) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study, self.search = study, search
        self.space = space_of(study)
        self._distributions = parameters.distributions(study)
        sampler = BoundarySampler(
            space=self._distributions,
            start=search.start,
            cost=lambda trial: self._cost.get(trial.number),
            most_repeats=study.replicates,
            seed=study.seed,
        )
        self._optuna = optuna.create_study(sampler=sampler)
        self._numbers: dict[str, int] = {}  # Optuna's trial of each claimed trial, by key
        self._cells: dict[str, dict[str, Any]] = {}  # the cell of each claimed trial, by key
        self._replicates: dict[str, set[int]] = {}  # those claimed of each cell
        self._finished: dict[int, Curve] = {}  # by Optuna's number
        self._given_up: set[int] = set()
        self._cost: dict[int, float] = {}
        self._most = int(min(search.trials, self.space.size * study.replicates))
        self._nothing_left = False
        self._checks: dict[bytes, Check] = {}
        self.note = ""
        self._reason: tuple[int, Reason | None] = (-1, None)

    @property
    def total(self) -> int:
        return len(self._numbers) if self._nothing_left or self.reason() is not None else self._most

    def claimed(self, cell: dict[str, Any], trial: Trial) -> None:
        if trial.key not in self._numbers:
            self._optuna.add_trial(parameters.running(self.study, cell, self._distributions))
            self._numbers[trial.key] = len(self._optuna.get_trials(deepcopy=False)) - 1
        self._cells[trial.key] = cell
        self._replicates.setdefault(canonical_json(cell), set()).add(trial.replicate)

    def finished(self, trial: Trial, result: Result) -> None:
        number = self._numbers[trial.key]
        # Deterministic, unlike seconds: the same trials lead to the same suggestions on every machine.
        self._cost[number] = float(trial.parameters) * trial.tokens(result.curve.step[-1])
        self._optuna.tell(number, excess(self.study, result.curve))
        self._finished[number] = result.curve

    def gave_up(self, trial: Trial) -> None:
        self._given_up.add(self._numbers[trial.key])
        self._optuna.tell(self._numbers[trial.key], state=TrialState.FAIL)  # else it would repel others for ever

    def next(self) -> Proposal | None:
        if len(self._numbers) >= self.total:
            return None
        fallbacks = self._optuna.user_attrs.get(FALLBACK, 0)
        asked = self._optuna.ask(self._distributions)
        fell_back = self._optuna.user_attrs.get(FALLBACK, 0) > fallbacks
        self.note = "the map could not be fitted; a Sobol point instead" if fell_back else ""
        cell = parameters.cell(self.study, asked.params)
        claimed = self._replicates.get(canonical_json(cell), set())
        # Drawn, since turns would go along with the Sobol sequence, whose points take turns between halves.
        turns = np.random.default_rng([self.study.seed, asked.number]).permutation(self.study.replicates)
        replicate = next((int(one) for one in turns if int(one) not in claimed), None)
        if replicate is None:
            self._optuna.tell(asked, state=TrialState.FAIL)
            self._nothing_left = True
            return None
        trial = self.study.trial(cell, replicate)
        self._numbers[trial.key] = asked.number
        return cell, trial

    def course(self) -> Course:
        reason: Reason | Literal["spent"] | None = self.reason()
        finished, claimed = len(self._finished), len(self._numbers)
        if reason is None and finished == claimed >= self._most:
            reason = "spent"
        checks = tuple(sorted(self._checks.values(), key=lambda check: check.trials))
        return Course(finished, claimed, self._most, checks, reason)

    def reason(self) -> Reason | None:
        """Return why the search has stopped, None while it goes on."""
        claims = self._numbers.items()
        finished = settled((self._cells[key], self._finished.get(i), i in self._given_up)
                           for key, i in claims if key in self._cells)  # fmt: skip
        at = len(stopping.checkpoints(len(finished)))
        if at != self._reason[0]:
            self._reason = at, self._reason_after(finished)
        return self._reason[1]

    def _reason_after(self, finished: list[Finished]) -> Reason | None:
        try:
            return reason(self.study, self.search, self.space, finished, self._checks)
        except FIT_ERRORS as error:
            log.warning("after %d trials: the fit of a check did not succeed (%s)", len(finished), error)
            return None


def reason(
    study: Study,
    search: Boundary,
    space: Space,
    finished: list[Finished],
    checks: dict[bytes, Check] | None = None,
) -> Reason | None:
    """Return why a search has stopped, given its ``settled`` trials; ``checks`` keeps what was checked."""
    all_seen = seen(study, space, finished)
    checks = {} if checks is None else checks

    def check_of(count: int) -> Check:
        first = all_seen[:count]
        key = first.points_ND.tobytes() + first.excess_N.tobytes()
        if key not in checks:
            checks[key] = stopping.check(space, first, along(study))
        return checks[key]

    fewest = 8 * (len(space) + 1)
    return stopping.reason_to_stop(check_of, len(finished), fewest, search.tolerance, search.width)
