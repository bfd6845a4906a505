"""Ways to choose the next trial: the boundary sampler, designs that do not look at results, and Optuna's minimisers."""

# D parameters

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import optuna
from benchmarks.boundary.truths import Truth
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from scipy.stats import qmc

from isoloss.search.boundary.sampler import BoundarySampler
from isoloss.search.boundary.space import Space

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=ExperimentalWarning)

Point = dict[str, Any]
OURS, OURS_8, OURS_COST = "ours", "ours, 8 slots", "ours, cost"
SOBOL, RANDOM, GRID, TPE, GP = "Sobol", "random", "grid", "TPE", "GPSampler"
BASELINES = (SOBOL, RANDOM, GRID, TPE, GP)
METHODS = (OURS, OURS_8, OURS_COST, *BASELINES)

MINIMISERS = {TPE, GP}
SLOTS = {OURS_8: 8}
SLOW = {GP}
"""Run with fewer seeds, and to fewer trials."""

FAR = 2.0
"""Distance from the threshold that minimisers are told for a diverged trial before any larger one was seen."""


class Method(Protocol):
    """Asked for the next point, with a number to tell its result by."""

    def ask(self) -> tuple[int, Point]: ...
    def tell(self, number: int, excess: float, cost: float) -> None: ...


def method(name: str, truth: Truth, trials: int, seed: int) -> Method:
    """Return a method by its name, for a run of so many trials."""
    space = Space(truth.distributions)
    if name in (OURS, OURS_8, OURS_COST):
        sampler = BoundarySampler(
            space=truth.distributions,
            seed=seed,
            most_repeats=truth.most_repeats,
            cost=(lambda trial: trial.user_attrs.get("cost")) if name == OURS_COST else None,
        )
        return Asked(sampler, truth)
    if name == SOBOL:
        return Listed(sobol(space, seed))
    if name == RANDOM:
        rng = np.random.default_rng(seed)
        return Listed(space.point(space.cover(rng.random((1, len(space))))[0]) for _ in itertools.count())
    if name == GRID:
        return Listed(grid(space, trials, seed))
    return Minimiser(TPESampler(seed=seed) if name == TPE else GPSampler(seed=seed), truth)


@dataclass
class Listed:
    """Points in an order that no result changes."""

    points: Iterator[Point]
    asked: int = -1

    def ask(self) -> tuple[int, Point]:
        self.asked += 1
        return self.asked, next(self.points)

    def tell(self, number: int, excess: float, cost: float) -> None: ...


class Asked:
    """An Optuna sampler that is told the excess as it is."""

    def __init__(self, sampler: BaseSampler, truth: Truth) -> None:
        self.study = optuna.create_study(sampler=sampler)
        self.distributions = truth.distributions
        self.running: dict[int, optuna.Trial] = {}

    def ask(self) -> tuple[int, Point]:
        trial = self.study.ask(self.distributions)
        self.running[trial.number] = trial
        return trial.number, trial.params

    def tell(self, number: int, excess: float, cost: float) -> None:
        trial = self.running.pop(number)
        trial.set_user_attr("cost", cost)
        self.study.tell(trial, excess)


class Minimiser(Asked):
    """An Optuna sampler that minimises the distance from the threshold."""

    farthest = FAR

    def tell(self, number: int, excess: float, cost: float) -> None:
        distance = abs(excess)
        if math.isfinite(distance):
            self.farthest = max(self.farthest, distance)
        super().tell(number, min(distance, self.farthest), cost)


def sobol(space: Space, seed: int) -> Iterator[Point]:
    """Return the points of a scrambled Sobol sequence."""
    sequence = qmc.Sobol(len(space), rng=seed)
    return (space.point(space.cover(sequence.random(1))[0]) for _ in itertools.count())


def grid(space: Space, trials: int, seed: int) -> Iterator[Point]:
    """Return the points of a full grid of about so many trials, in an order that covers the space at any time.

    Each point of a scrambled Sobol sequence takes the nearest point of the grid that is left. The grid starts again
    when it is used up.
    """
    shape = even_shape(trials, len(space))
    places_ND = np.indices(shape).reshape(len(shape), -1).T
    fraction_ND = (places_ND + 0.5) / np.array(shape)
    sequence = qmc.Sobol(len(space), rng=seed)
    while True:
        left = list(range(len(fraction_ND)))
        while left:
            apart_N = ((fraction_ND[left] - sequence.random(1)) ** 2).sum(1)
            yield space.point(space.cover(fraction_ND[[left.pop(int(apart_N.argmin()))]])[0])


def even_shape(trials: int, dimensions: int) -> list[int]:
    """Return how many values of each parameter a grid of at most so many trials has: as equal as can be."""
    shape: list[int] = []
    while len(shape) < dimensions:
        shape.append(int((trials / math.prod(shape)) ** (1 / (dimensions - len(shape))) + 1e-9))
    return shape
