"""What a trial at a point will cost, from what finished ones did."""

# N trials, P points, F features

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import BoundaryMap

RIDGE = 0.1
FEWEST = 4
"""Costs from which one is predicted; with fewer, every point costs the same."""


class CostModel:
    """The cost of a trial at a point, relative to the typical finished trial.

    The logarithm of the cost is regressed (ridge) on each coordinate, and its square, and on how likely a trial falls
    off the cliff, since failing trials end early. Costs that are not positive are left out; with fewer than four,
    every point costs the same.
    """

    def __init__(self, known: BoundaryMap, points_ND: Array, cost_N: Array) -> None:
        self.known = known
        usable_N = np.isfinite(cost_N) & (cost_N > 0.0)
        self.fitted = usable_N.sum() >= FEWEST
        if self.fitted:
            log_cost_N = np.log(cost_N[usable_N])
            features_NF = self._features(points_ND[usable_N])
            self.middle_F = features_NF.mean(0)
            design_NF = features_NF - self.middle_F
            gram_FF = design_NF.T @ design_NF + RIDGE * np.eye(len(self.middle_F))
            self.weight_F = np.linalg.solve(gram_FF, design_NF.T @ (log_cost_N - log_cost_N.mean()))
            self.spread = float(np.ptp(log_cost_N))

    def of(self, points_PD: Array) -> Array:
        """Return the predicted cost at each point, (P,)."""
        if not self.fitted:
            return np.ones(len(points_PD))
        predicted_P = (self._features(points_PD) - self.middle_F) @ self.weight_F
        return np.asarray(np.exp(np.clip(predicted_P, -self.spread, self.spread)))  # never beyond what was seen

    def _features(self, points_PD: Array) -> Array:
        mean_P, variance_P = self.known.cliff.marginals(points_PD)
        columns = [ndtr(mean_P / np.sqrt(variance_P + self.known.cliff.prior.noise**2))]
        for column_P, one in zip(points_PD.T, self.known.space.dimensions, strict=True):
            if one.unordered:
                columns += [(column_P == code).astype(float) for code in range(len(one.values or ()))]
            else:
                columns += [column_P, column_P**2]
        return np.stack(columns, axis=1)
