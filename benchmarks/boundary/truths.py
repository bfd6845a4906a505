"""Maps of convergence that are known exactly, and trials drawn from them.

The synthetic ones are a band of learning rates over the vocabulary size, and over the rank of the head: its lower edge
rises and its upper edge falls as the vocabulary grows, until the band closes. Below the band the loss rises slowly;
above it, training diverges, at random within about a tenth of a decade: mostly to no loss at all, in three of ten
trials to a finite plateau far above the threshold. What is asked for is where the median seed converges.
"""

# P points, D parameters

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.special import ndtr
from scipy.stats import qmc

from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.space import Space

LR, V, RANK = "learning_rate", "vocab_size", "rank"
LR_LOW, DECADES = 1e-5, 5.0
VOCAB_SIZES = tuple(2**i for i in range(9, 19))
RANKS = (8, 16, 32, 64, 128, 256)
TEST_POINTS = 4096

STEEPNESS = 0.6
"""Decades of excess loss per decade of learning rate, below the band."""

DEEPEST, SHALLOWEST, DEPTH_BY_WIDTH = 1.2, 0.05, 0.9
"""How far below the threshold the band's floor lies, in decades: less where the band is narrow."""

NEAR, NOISIER = 0.3, 2.0
"""At the upper edge, seeds scatter three times as much as elsewhere, which fades over so many decades."""

PLATEAUS, PLATEAU, PLATEAU_SPREAD = 0.3, 1.5, 0.1
"""Share of diverged trials that keep a finite loss, and how far above the threshold that lies."""

ENDED_EARLY = 0.15
"""Share of its cost that a diverging trial has spent when it ends."""


class Truth(Protocol):
    """A map to be found. ``trial`` returns the excess over the threshold and the cost of one more trial at a point."""

    @property
    def distributions(self) -> dict[str, BaseDistribution]: ...
    @property
    def most_repeats(self) -> int | None: ...
    def inside(self, points: list[dict[str, Any]]) -> NDArray[np.bool_]: ...
    def trial(self, point: dict[str, Any], earlier: int, rng: np.random.Generator) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Synthetic:
    """A band over the vocabulary size and, with ``ranks``, over the rank.

    ``noise`` is the spread of seeds in decades of excess loss, ``fringe`` that of the learning rate at which they
    diverge. With ``binary`` a trial tells only whether it converged.
    """

    noise: float = 0.06
    fringe: float = 0.1
    ranks: bool = False
    binary: bool = False
    most_repeats: int | None = None

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Ranges; with ranks, lists of vocabulary sizes and ranks."""
        rate = FloatDistribution(LR_LOW, LR_LOW * 10**DECADES, log=True)
        if self.ranks:
            return {LR: rate, V: CategoricalDistribution(VOCAB_SIZES), RANK: CategoricalDistribution(RANKS)}
        return {LR: rate, V: IntDistribution(VOCAB_SIZES[0], VOCAB_SIZES[-1], log=True)}

    def shape(self, points: list[dict[str, Any]]) -> tuple[Array, Array]:
        """Return how high the median seed ends, and how many decades beyond the upper edge each point lies, (P,)."""
        rate_P = np.log10([point[LR] / LR_LOW for point in points])
        size_P = np.log2([point[V] / VOCAB_SIZES[0] for point in points]) / math.log2(VOCAB_SIZES[-1] / VOCAB_SIZES[0])
        rank_P = np.full(len(points), 0.6)
        if self.ranks:
            rank_P = np.log2([point[RANK] / RANKS[0] for point in points]) / math.log2(RANKS[-1] / RANKS[0])
        high_P = 4.2 - 1.4 * size_P**1.5 - 0.5 * (1 - rank_P) + 0.15 * np.sin(5 * size_P)
        low_P = 1.0 + 1.6 * size_P**2 + 0.9 * (1 - rank_P) * size_P + 0.1 * np.sin(4 * rank_P + 3 * size_P)
        depth_P = np.clip(DEPTH_BY_WIDTH * (high_P - low_P), SHALLOWEST, DEEPEST)
        return np.maximum(STEEPNESS * (low_P - rate_P), -depth_P), rate_P - high_P

    def spread(self, beyond_P: Array) -> Array:
        """Return the spread of seeds."""
        return self.noise * (1.0 + NOISIER * np.exp(-((beyond_P / NEAR) ** 2)))

    def share(self, points: list[dict[str, Any]]) -> Array:
        """Return the share of seeds that converge at each point."""
        height_P, beyond_P = self.shape(points)
        return np.asarray(ndtr(-beyond_P / self.fringe) * ndtr(-height_P / self.spread(beyond_P)))

    def inside(self, points: list[dict[str, Any]]) -> NDArray[np.bool_]:
        """Return whether at least half of the seeds converge at each point."""
        return np.asarray(self.share(points) >= 0.5)

    def edges(self, at: dict[str, Any]) -> tuple[float, float] | None:
        """Return log10 of the smallest and largest learning rate at which the median seed converges; None if none."""
        rates = np.logspace(math.log10(LR_LOW), math.log10(LR_LOW) + DECADES, 4001)
        inside = np.flatnonzero(self.inside([{**at, LR: float(rate)} for rate in rates]))
        return (math.log10(rates[inside[0]]), math.log10(rates[inside[-1]])) if len(inside) else None

    def trial(self, point: dict[str, Any], earlier: int, rng: np.random.Generator) -> tuple[float, float]:
        """Return the excess and cost of a trial with another seed: a body of cost 1, and a head as large as V x rank.

        Every outcome draws the same random numbers, so that what one trial meets does not depend on the others.
        """
        (height,), (beyond,) = self.shape([point])
        scatter, tilt = rng.standard_normal(2)
        chance, kept = rng.random(2)
        cost = 1.0 + point[V] / 8192 * point.get(RANK, RANKS[-1]) / RANKS[-1]
        excess = float(height + self.spread(beyond) * scatter)
        diverged = bool(chance < ndtr(beyond / self.fringe))
        if diverged:
            excess, cost = PLATEAU + PLATEAU_SPREAD * tilt if kept < PLATEAUS else math.inf, ENDED_EARLY * cost
        if self.binary:
            excess = math.inf if excess > 0 else -math.inf
        return excess, cost


def test_points(space: Space) -> Array:
    """Return the coordinates at which a map is judged: every point of a small space, else a Sobol sequence."""
    if space.size <= TEST_POINTS:
        return space.every()
    return space.cover(qmc.Sobol(len(space), rng=20_261_129).random(TEST_POINTS))


SYNTHETIC: dict[str, Synthetic] = {
    "band2d": Synthetic(),
    "band3d": Synthetic(ranks=True),
    "noisy2d": Synthetic(noise=0.18, fringe=0.15),
    "binary2d": Synthetic(binary=True),
}
