"""An Optuna sampler that places trials where it is least known whether they converge."""

# N finished trials, C candidates, P running trials, D dimensions

from __future__ import annotations

import logging
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import qmc

from isoloss.search.boundary.cost import CostModel
from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.lookahead import Lookahead
from isoloss.search.boundary.map import BoundaryMap, Seen, references
from isoloss.search.boundary.space import Space

log = logging.getLogger(__name__)

OUTCOME = "boundary:outcome"
"""A trial's user attribute: ``above`` or ``below`` says on which side it ended, whatever its value or state."""

CANDIDATES = 512
SCREENED = 96
REFERENCES = 512
REFINED = 32
"""Candidates drawn; those that are looked ahead from; the points that the look-ahead averages over; and the
neighbours of the best that are tried in the end."""

NEAR = 0.03
"""How far those neighbours lie, in fractions of an axis (sd)."""

LEAST_DROP = 1e-9
"""Share of the space below which nothing is expected of any trial; then another Sobol point may still surprise."""

Point = dict[str, Any]
"""A value for each parameter."""

FIT_ERRORS = (np.linalg.LinAlgError, FloatingPointError, ValueError)
FALLBACK = "boundary:fallback"
"""The study's user attribute that counts the trials for which the fit failed and a Sobol point was taken."""


def starting_trials(space: Space) -> int:
    """Return how many trials cover the space evenly before any is placed."""
    return 2 * len(space) + 4


class BoundarySampler(BaseSampler):
    """Finds where an objective crosses ``threshold``: a trial converges when its value is at most that.

    (At least that, in a study that maximises.) The value should change smoothly near the threshold: for losses, give
    their logarithm. An infinite value, a pruned trial, and any trial whose user attribute ``boundary:outcome`` is
    ``above`` say no more than that the trial ended far above; ``below`` says the reverse. Failed trials say nothing.

    The first ``start`` trials (by default 2 a dimension and 4) and every ``explore_every``-th are points of a
    scrambled Sobol sequence; half way between those, a point near the boundary is tried again, which tells how far
    seeds scatter. Every other trial lies where it is expected to move most of the space to the right side of the
    boundary, divided by its predicted cost. A suggestion depends on the seed, the trial's number and the
    trials that have finished or run, and on nothing else.

    - ``space``: Optuna distributions by parameter. Without it, the parameters that all finished trials share, each as
      the last trial had it. Numbers in a categorical keep their order and spacing; trials outside the space count.
    - ``observation``: ``"outcome"`` uses only on which side of the threshold a value lies.
    - ``cost``: the cost of a finished trial in any unit, None for unknown; without it, all cost the same.
    - ``most_repeats``: how often one point may be tried; None for as often as it pays.

    Raises ValueError for an argument out of its range.
    """

    def __init__(
        self,
        threshold: float = 0.0,
        *,
        space: Mapping[str, BaseDistribution] | None = None,
        observation: Literal["value", "outcome"] = "value",
        start: int | None = None,
        explore_every: int = 10,
        cost: Callable[[FrozenTrial], float | None] | None = None,
        most_repeats: int | None = None,
        seed: int = 0,
    ) -> None:
        if not math.isfinite(threshold):
            raise ValueError(f"threshold must be finite, not {threshold!r}")
        if observation not in ("value", "outcome"):
            raise ValueError(f"observation must be 'value' or 'outcome', not {observation!r}")
        for name, value, least in [("start", start, 0), ("explore_every", explore_every, 1),
                                   ("most_repeats", most_repeats, 1)]:  # fmt: skip
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value!r}")
        self.threshold, self.observation = threshold, observation
        self.distributions = None if space is None else dict(space)
        self.start, self.explore_every = start, explore_every
        self.cost, self.most_repeats, self.seed = cost, most_repeats, seed
        self._fitted: tuple[Any, BoundaryMap] | None = None

    # --- Optuna's side

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the space as given, or the parameters that all finished trials share."""
        if self.distributions is not None:
            return self.distributions
        trials = study.get_trials(deepcopy=False)
        found = [one.distributions for one in trials if self.excess(one, study.direction) is not None]
        if not found:
            return {}
        return {name: one for name, one in found[-1].items() if all(name in other for other in found)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Sample a parameter outside the space uniformly."""
        stream = np.random.SeedSequence([self.seed, trial.number, zlib.crc32(param_name.encode())])
        random = RandomSampler(int(stream.generate_state(1)[0]))
        return random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> Point:
        """Return the next point; a Sobol point, with a warning, where the fit does not succeed."""
        if not search_space:
            return {}
        space = Space(search_space)
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        start = starting_trials(space) if self.start is None else self.start
        seen, cost_N = self._seen(space, others, study.direction)
        if len(seen) < 2 or trial.number < start:
            return self._unexplored(space, others, trial.number)
        explored, turn = divmod(trial.number - start, self.explore_every)
        if turn == self.explore_every - 1:
            # The sequence goes on point by point: its every tenth point would lie in one half of some dimension.
            return self._unexplored(space, others, start + explored)
        try:
            if turn == self.explore_every // 2 - 1 and (again := self._again(space, others, seen)) is not None:
                return again
            return self._most_informative(space, others, seen, cost_N, trial.number)
        except FIT_ERRORS as error:
            log.warning("trial %d: the fit did not succeed (%s); it takes a Sobol point", trial.number, error)
            study.set_user_attr(FALLBACK, study.user_attrs.get(FALLBACK, 0) + 1)
            return self._unexplored(space, others, trial.number)

    # --- what is known

    def map(self, study: Study) -> BoundaryMap:
        """Return the map that the study's finished trials imply; raises ValueError before the first one."""
        distributions = self.infer_relative_search_space(study, None)  # type: ignore[arg-type]
        seen, _ = self._seen(Space(distributions), study.get_trials(deepcopy=False), study.direction)
        if not len(seen):
            raise ValueError("no trial has finished yet, so there is no map")
        return BoundaryMap(Space(distributions), seen)

    def excess(self, trial: FrozenTrial, direction: StudyDirection) -> float | None:
        """Return how far above the threshold a trial ended, infinite where only the side is known; None if unknown."""
        tag = trial.user_attrs.get(OUTCOME)
        if not trial.state.is_finished():
            return None
        if tag in ("above", "below"):
            return np.inf if tag == "above" else -np.inf
        if trial.state == TrialState.PRUNED:
            return np.inf
        if trial.state != TrialState.COMPLETE:
            return None
        sign = -1.0 if direction == StudyDirection.MAXIMIZE else 1.0
        excess = sign * (float(trial.value) - self.threshold)  # type: ignore[arg-type]
        if self.observation == "outcome":
            return np.inf if excess > 0 else -np.inf
        return excess

    def _seen(self, space: Space, trials: Sequence[FrozenTrial], direction: StudyDirection) -> tuple[Seen, Array]:
        told = [(one, excess) for one in trials if (excess := self.excess(one, direction)) is not None]
        points_ND, placed_N = _coordinates(space, [one for one, _ in told])
        placed = [row for row, yes in zip(told, placed_N, strict=True) if yes]
        costs = [None if self.cost is None else self.cost(one) for one, _ in placed]
        cost_N = np.array([np.nan if cost is None else cost for cost in costs])
        return Seen(points_ND[placed_N], np.array([excess for _, excess in placed])), cost_N

    # --- what is next

    def _unexplored(self, space: Space, others: Sequence[FrozenTrial], number: int) -> Point:
        """Return the Sobol sequence's point of this number, or the first after it that may be tried."""
        sobol = qmc.Sobol(len(space), scramble=True, rng=self.seed)
        if number:
            sobol.fast_forward(number)
        points_CD = space.cover(sobol.random(64))
        if space.size <= 2 * CANDIDATES:  # of few points, the sequence may miss the last ones that are left
            rest_CD = np.random.default_rng([self.seed, number]).permutation(space.every())
            points_CD = np.concatenate([points_CD, rest_CD])
        return space.point(self._allowed(_tried(space, others), points_CD)[0])

    def _again(self, space: Space, others: Sequence[FrozenTrial], seen: Seen) -> Point | None:
        """Return a point that was tried, uncertain and looked at seldom; None where none may be tried again.

        How far seeds scatter near the edge is seen in repeats alone. A map that has none may take one seed's outcomes
        for a smooth edge, and be sure of it.
        """
        known = BoundaryMap(space, seen, self._base(space, seen))
        inside_N = ((seen.points_ND >= 0.0) & (seen.points_ND <= 1.0) | space.unordered_D).all(axis=1)
        points_CD = np.unique(seen.points_ND[inside_N], axis=0)
        looks = Counter(map(tuple, _tried(space, others).round(9)))
        looks_C = np.array([looks[tuple(point_D)] for point_D in points_CD.round(9)])
        worth_C = np.where(looks_C < (self.most_repeats or np.inf), known.error(points_CD) / looks_C**2, -1.0)
        best = int(np.argmax(worth_C)) if len(points_CD) else -1
        return None if best < 0 or worth_C[best] < 0.0 else space.point(points_CD[best])

    def _most_informative(
        self, space: Space, others: Sequence[FrozenTrial], seen: Seen, cost_N: Array, number: int
    ) -> Point:
        known = BoundaryMap(space, seen, self._base(space, seen))
        if not known.settled:
            raise FloatingPointError("expectation propagation did not settle")
        pending_PD = _tried(space, [one for one in others if one.state == TrialState.RUNNING])
        ahead = Lookahead(known, references(space, REFERENCES), pending_PD)
        cost = CostModel(known, seen.points_ND, cost_N)
        rng = np.random.default_rng([self.seed, number])
        tried_ND = _tried(space, others) if self.most_repeats is not None else pending_PD

        def best(points_CD: Array, worth: Callable[[Array], Array], count: int) -> tuple[Array, Array]:
            points_CD = self._allowed(tried_ND, points_CD)
            worth_C = worth(points_CD)
            order = np.argsort(-worth_C / cost.of(points_CD), kind="stable")[:count]
            return points_CD[order], worth_C[order]

        screened_CD, _ = best(_candidates(space, seen.points_ND, rng), known.error, SCREENED)
        found_CD, drop = best(screened_CD, ahead.drop, 1)
        if drop[0] < LEAST_DROP:
            return self._unexplored(space, others, number)
        around_CD = _neighbours(space, found_CD, rng)
        if len(around_CD):
            found_CD, _ = best(np.concatenate([found_CD, around_CD]), ahead.drop, 1)
        return space.point(found_CD[0])

    def _allowed(self, tried_ND: Array, points_CD: Array) -> Array:
        """Return the points that were not tried too often; all of them when there are no others."""
        if self.most_repeats is None:
            return points_CD
        tried = Counter(map(tuple, tried_ND.round(9)))
        allowed_C = np.array([tried[tuple(point_D)] < self.most_repeats for point_D in points_CD.round(9)])
        return points_CD[allowed_C] if allowed_C.any() else points_CD

    def _base(self, space: Space, seen: Seen) -> BoundaryMap:
        """Return the map of the first trials: anew at every tenth trial more (2 to 100), whoever asks and when."""
        count = 1
        while (more := count + min(max(2, count // 10), 100)) <= len(seen):
            count = more
        first = seen[:count]
        key = (space.names, first.points_ND.tobytes(), first.excess_N.tobytes())
        fitted = self._fitted
        if fitted is None or fitted[0] != key:
            fitted = self._fitted = key, BoundaryMap(space, first)
        return fitted[1]


def _coordinates(space: Space, trials: Sequence[FrozenTrial]) -> tuple[Array, NDArray[np.bool_]]:
    """Return the coordinates of trials, (N, D), and which of them have any.

    One that lacks a parameter, or has a value that the space cannot place, has none.
    """
    try:
        return space.encode([one.params for one in trials]), np.ones(len(trials), dtype=bool)
    except (KeyError, ValueError):
        if len(trials) == 1:
            return np.zeros((1, len(space))), np.zeros(1, dtype=bool)
    each = [_coordinates(space, [one]) for one in trials]
    return np.concatenate([row for row, _ in each]), np.concatenate([placed for _, placed in each])


def _tried(space: Space, trials: Sequence[FrozenTrial]) -> Array:
    """Return the coordinates of the trials that have them, (N, D)."""
    points_ND, placed_N = _coordinates(space, trials)
    return points_ND[placed_N]


def _candidates(space: Space, seen_ND: Array, rng: np.random.Generator) -> Array:
    """Return every point of a small space; else random ones, and those that were seen, for another look."""
    if space.size <= 2 * CANDIDATES:
        return space.every()
    inside_N = ((seen_ND >= 0.0) & (seen_ND <= 1.0) | space.unordered_D).all(axis=1)
    return np.concatenate([space.cover(rng.random((CANDIDATES, len(space)))), np.unique(seen_ND[inside_N], axis=0)])


def _neighbours(space: Space, found_CD: Array, rng: np.random.Generator) -> Array:
    """Return points that differ a little from the found one in the continuous parameters; none if there are none."""
    continuous_D = np.array([np.isinf(one.size) for one in space.dimensions])
    if not continuous_D.any():
        return found_CD[:0]
    steps_CD = NEAR * rng.standard_normal((REFINED, len(space)))
    return np.where(continuous_D, np.clip(found_CD + steps_CD, 0.0, 1.0), found_CD)
