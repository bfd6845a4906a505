"""The reference estimator: one censored surface through all trials, as an earlier prototype of the search had it.

A reading within the cap counts by its size; beyond it, and where a trial diverged, it says "at least" or "at most" the
cap. Its edges are read by the same function as the map's.
"""

# N trials, P points, S draws

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from isoloss.search.boundary.fit import Belief, fit
from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import Seen
from isoloss.search.boundary.process import Observations, condition
from isoloss.search.boundary.space import Space

SURFACE = Belief(mean=(0.0, 1.0), amplitude=(1.0, 0.5), length=(0.4, 0.6), noise=(0.15, 1.0))
SCALED_BY, SMALLEST_CAP = 32, 0.5
"""Trials whose median distance from the threshold is the unit; the cap falls from one unit to this with more trials."""


class OneSurface:
    """What the trials imply under one surface, with as much of ``BoundaryMap`` as reading a band takes."""

    def __init__(self, space: Space, seen: Seen) -> None:
        self.space = space
        unit = seen[:SCALED_BY].cap()
        cap = min(1.0, max(SMALLEST_CAP, (SCALED_BY / len(seen)) ** 0.5))
        height_N = seen.excess_N / unit
        side_N = np.where(np.abs(height_N) > cap, np.sign(height_N), 0.0).astype(int)
        observed = Observations(seen.points_ND, np.clip(height_N, -cap, cap), side_N)
        prior = fit(SURFACE, observed, SURFACE.start(space.unordered_D))
        self.surface = condition(prior, observed).posterior

    def draws(self, points_PD: Array, count: int, rng: np.random.Generator) -> Array:
        """Return joint draws of the share of seeds that converge at each point, (S, P)."""
        return np.asarray(ndtr(-self.surface.draws(points_PD, count, rng) / self.surface.prior.noise))
