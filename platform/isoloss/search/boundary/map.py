"""The map of convergence that finished trials imply: two latent surfaces, a cliff and a slope.

A trial converges when it neither falls off the cliff nor ends too high on the slope. Beyond a large learning rate,
training fails at once, from far below the threshold to far above it or to no loss at all; one smooth surface through
such readings puts the edge too early, since it meets the failures too gradually. So whether a trial fails outright is
one surface, seen through yes and no alone; and how high it ended where it did not is another, seen through readings.
"""

# N trials, P points, D dimensions, S draws

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import qmc

from isoloss.search.boundary.fit import Belief, fit
from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.process import Observations, Posterior, Prior, condition
from isoloss.search.boundary.space import Space

CLIFF = Belief(mean=(0.0, 1.0), amplitude=(7.0, 0.6), length=(0.7, 0.6), noise=(1.0, 0.0))
"""The cliff's scale is fixed by its noise: 1 is the spread of seeds."""

SLOPE = Belief(mean=(0.0, 1.0), amplitude=(1.0, 0.5), length=(0.7, 0.6), noise=(0.15, 1.0))
"""The slope is measured in units of the cap."""

CAP_FROM = 32
"""Readings whose distances from the threshold decide the cap."""

FEWEST_READINGS = 3
"""Readings from which a slope is inferred; with fewer, the cliff alone tells."""

MOST_FITTED = 256
"""Trials to which the priors are fitted."""

MOST_CONDITIONED = 500
"""Trials that a map stands on; of more, the ones nearest to the boundary and as many of the others."""

REFERENCES = 1024
"""Points over which volumes are averaged."""


@dataclass(frozen=True)
class Seen:
    """Finished trials: coordinates and excess over the threshold, +inf for "at least" and -inf for "at most"."""

    points_ND: Array
    excess_N: Array

    def __len__(self) -> int:
        return len(self.excess_N)

    def __getitem__(self, which: slice | NDArray[np.intp]) -> Seen:
        return Seen(self.points_ND[which], self.excess_N[which])

    def __add__(self, more: Seen) -> Seen:
        return Seen(np.concatenate([self.points_ND, more.points_ND]), np.concatenate([self.excess_N, more.excess_N]))

    def cap(self) -> float:
        """Return how far from the threshold a reading still counts by its size: an upper quartile of distances.

        Of the first 32 only, since a search crowds around the threshold: a cap that followed it would come to lie
        within the noise, and take noise for failures.
        """
        finite_N = np.abs(self.excess_N[np.isfinite(self.excess_N)])[:CAP_FROM]
        return (float(np.quantile(finite_N, 0.75)) if len(finite_N) else 0.0) or 1.0

    def of_cliff(self, cap: float) -> Observations:
        """Return which trials ended far above the threshold, or with no loss at all."""
        return Observations(self.points_ND, np.zeros(len(self)), np.where(self.excess_N > cap, 1, -1))

    def of_slope(self, cap: float) -> Observations:
        """Return the readings of the others in units of the cap; beyond it they only say "at most"."""
        kept_N = (self.excess_N <= cap) & np.isfinite(self.excess_N)
        value_N = self.excess_N[kept_N] / cap
        return Observations(self.points_ND[kept_N], np.maximum(value_N, -1.0), np.where(value_N < -1.0, -1, 0))


@dataclass(frozen=True)
class Priors:
    """The fitted priors of the two surfaces; the slope's is None where too few readings tell of one."""

    cliff: Prior
    slope: Prior | None

    @classmethod
    def fit(cls, space: Space, seen: Seen) -> Priors:
        """Fit them to trials, a pure function of these; raises numpy's or FloatingPointError when it cannot."""
        return _fitted(*(array.tobytes() for array in (space.unordered_D, seen.points_ND, seen.excess_N)))


@lru_cache(maxsize=256)
def _fitted(unordered: bytes, points: bytes, excess: bytes) -> Priors:
    """Remember fits: a search, the rule that stops it, and the report of its course ask for the same ones."""
    unordered_D, excess_N = np.frombuffer(unordered, dtype=np.bool_), np.frombuffer(excess)
    seen = Seen(np.frombuffer(points).reshape(len(excess_N), len(unordered_D)), excess_N)
    cap = seen.cap()
    if len(seen) > MOST_FITTED:
        seen = seen[np.random.default_rng(0).choice(len(seen), MOST_FITTED, replace=False)]
    slope = seen.of_slope(cap)
    return Priors(
        fit(CLIFF, seen.of_cliff(cap), CLIFF.start(unordered_D)),
        fit(SLOPE, slope, SLOPE.start(unordered_D)) if len(slope) >= FEWEST_READINGS else None,
    )


class BoundaryMap:
    """Where trials converge, as far as finished ones tell. Points are coordinates of the space, (P, D).

    ``seen`` are the trials it stands on. ``base`` is the map of the first of them: its priors and cap are used again,
    and what it inferred is where inference starts. ``settled`` says whether inference came to rest. Raises numpy's
    LinAlgError or FloatingPointError when a fit does not succeed.
    """

    def __init__(self, space: Space, seen: Seen, base: BoundaryMap | None = None) -> None:
        self.space, self.seen = space, seen
        self.cap: float = seen.cap() if base is None else base.cap
        self.priors: Priors = Priors.fit(space, seen) if base is None else base.priors
        if base is not None:
            seen = base.standing + seen[len(base.seen) :]
        elif len(seen) > MOST_CONDITIONED:
            seen = self._thinned(seen)
        self._condition(seen, base)

    def _thinned(self, seen: Seen) -> Seen:
        """Return the trials nearest to the boundary, as a coarse map has it, and as many of the others."""
        shuffled = np.random.default_rng(1).permutation(len(seen))
        half = MOST_CONDITIONED // 2
        self._condition(seen[shuffled[:half]])
        nearest = np.argsort(-self.error(seen.points_ND), kind="stable")[:half]
        others = shuffled[~np.isin(shuffled, nearest)][:half]
        return seen[np.sort(np.concatenate([nearest, others]))]

    def _condition(self, seen: Seen, base: BoundaryMap | None = None) -> None:
        self.standing: Seen = seen
        found = condition(self.priors.cliff, seen.of_cliff(self.cap), None if base is None else base.cliff)
        self.cliff: Posterior = found.posterior
        self.slope: Posterior | None = None
        self.settled: bool = found.settled
        if self.priors.slope is not None:
            found = condition(self.priors.slope, seen.of_slope(self.cap), None if base is None else base.slope)
            self.slope = found.posterior
            self.settled &= found.settled

    def chance(self, points_PD: Array) -> Array:
        """Return the probability that a trial with another seed converges at each point."""
        mean_P, variance_P = self.cliff.marginals(points_PD)
        chance_P = ndtr(-mean_P / np.sqrt(variance_P + self.cliff.prior.noise**2))
        if self.slope is not None:
            mean_P, variance_P = self.slope.marginals(points_PD)
            chance_P = chance_P * ndtr(-mean_P / np.sqrt(variance_P + self.slope.prior.noise**2))
        return np.asarray(chance_P)

    def inside(self, points_PD: Array) -> Array:
        """Return the probability that each point is one where the median seed converges."""
        return np.asarray(np.prod([ndtr(-mean_P / np.sqrt(variance_P))
                                   for mean_P, variance_P in self.marginals(points_PD)], axis=0))  # fmt: skip

    def marginals(self, points_PD: Array) -> list[tuple[Array, Array]]:
        """Return mean and variance of each surface at the points."""
        return [surface.marginals(points_PD) for surface in self.surfaces]

    @property
    def surfaces(self) -> list[Posterior]:
        """The cliff, and the slope where there is one."""
        return [self.cliff] if self.slope is None else [self.cliff, self.slope]

    def error(self, points_PD: Array) -> Array:
        """Return the probability that each point is on the other side of the boundary than the map puts it."""
        inside_P = self.inside(points_PD)
        return np.minimum(inside_P, 1.0 - inside_P)

    def draws(self, points_PD: Array, count: int, rng: np.random.Generator) -> Array:
        """Return joint draws of the share of seeds that converge at each point, (S, P)."""
        share_SP = ndtr(-self.cliff.draws(points_PD, count, rng) / self.cliff.prior.noise)
        if self.slope is not None:
            share_SP = share_SP * ndtr(-self.slope.draws(points_PD, count, rng) / self.slope.prior.noise)
        return np.asarray(share_SP)

    @cached_property
    def references_PD(self) -> Array:
        """Points that cover the space evenly: all of a small finite one, else a scrambled Sobol sequence."""
        return references(self.space)

    @property
    def error_volume(self) -> float:
        """The share of the space that the map is expected to have on the wrong side."""
        return float(self.error(self.references_PD).mean())


def references(space: Space, count: int = REFERENCES) -> Array:
    """Return so many points that cover the space evenly, the same at every call; all of a smaller finite space."""
    if space.size <= count:
        return space.every()
    return space.cover(qmc.Sobol(len(space), rng=0).random(count))
