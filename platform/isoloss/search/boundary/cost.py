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


def predicted_cost(known: BoundaryMap, points_ND: Array, cost_N: Array, candidates_PD: Array) -> Array:
    """Return the predicted cost of each candidate, relative to the typical finished trial, (P,).

    The logarithm of the cost is regressed (ridge) on each coordinate, and its square, and on how likely a trial falls
    off the cliff, since failing trials end early. Costs that are not positive are left out.
    """
    usable_N = np.isfinite(cost_N) & (cost_N > 0.0)
    if usable_N.sum() < FEWEST:
        return np.ones(len(candidates_PD))
    log_cost_N = np.log(cost_N[usable_N])
    features_NF, features_PF = _features(known, points_ND[usable_N]), _features(known, candidates_PD)
    middle_F = features_NF.mean(0)
    design_NF = features_NF - middle_F
    gram_FF = design_NF.T @ design_NF + RIDGE * np.eye(len(middle_F))
    weight_F = np.linalg.solve(gram_FF, design_NF.T @ (log_cost_N - log_cost_N.mean()))
    predicted_P = (features_PF - middle_F) @ weight_F
    spread = np.ptp(log_cost_N)
    return np.asarray(np.exp(np.clip(predicted_P, -spread, spread)))  # never beyond what was seen


def _features(known: BoundaryMap, points_PD: Array) -> Array:
    mean_P, variance_P = known.cliff.marginals(points_PD)
    columns = [ndtr(mean_P / np.sqrt(variance_P + known.cliff.prior.noise**2))]
    for column_P, one in zip(points_PD.T, known.space.dimensions, strict=True):
        if one.unordered:
            columns += [(column_P == code).astype(float) for code in range(len(one.values or ()))]
        else:
            columns += [column_P, column_P**2]
    return np.stack(columns, axis=1)
