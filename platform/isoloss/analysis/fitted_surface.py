"""A smooth surface through the final losses of scattered trials: a Gaussian process over the axes of a study."""

# N trials, P learning rates, D axes, K neighbours, S draws

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.table import axis_value
from isoloss.search import boundary_plan, parameters
from isoloss.search.boundary.fit import Belief, fit
from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.process import Observations, Posterior, Prior, Sites
from isoloss.study import Study

LOSS = Belief(mean=(0.0, 1.0), amplitude=(1.0, 0.5), length=(0.3, 0.7), noise=(0.15, 1.0))
"""What is believed of losses scaled to mean 0 and standard deviation 1, over axes scaled to 0 to 1."""

MOST_FITTED, MOST_CONDITIONED = 256, 1000
"""Trials that choose the prior, and that condition the surface; of more, so many are drawn."""

FEWEST_NEIGHBOURS, NEIGHBOURS, LEAST_NOISE = 6, 1 / 6, 0.003
"""Trials, and the share of all, whose residuals tell the noise at one of them; and the least it can be (scaled)."""

RATES, DRAWS = 101, 1000


class FittedSurface:
    """The mean over seeds of the capped excess loss, as a share of the initial one, over the study's axes.

    A Matérn-5/2 process (Rasmussen & Williams 2006) under its most probable prior, whose noise may differ from place to
    place: seeds scatter more where training begins to fail. Raises numpy's LinAlgError or FloatingPointError where
    that does not succeed, or where all trials ended alike.
    """

    def __init__(self, study: Study, trials: pd.DataFrame) -> None:
        self.study, self.space = study, boundary_plan.space_of(study)
        if len(trials) > MOST_CONDITIONED:
            trials = trials.sample(MOST_CONDITIONED, random_state=0)
        columns = {path: trials[path].tolist() for path in study.axes}
        self.points_ND = self._points(
            [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        )
        self.initial_N = (trials["initial_loss"] - trials["floor"]).to_numpy(dtype=np.float64)
        share_N = trials["capped_excess"].to_numpy(dtype=np.float64) / self.initial_N
        self.centre, self.scale = float(share_N.mean()), float(share_N.std())
        if self.scale == 0.0:
            raise FloatingPointError("all trials ended with the same loss")
        value_N = (share_N - self.centre) / self.scale
        some_N = np.random.default_rng(0).permutation(len(value_N))[:MOST_FITTED]
        readings = Observations(self.points_ND[some_N], value_N[some_N], np.zeros(len(some_N)))
        prior = fit(LOSS, readings, LOSS.start(self.space.unordered_D))
        even = _given(prior, self.points_ND, value_N, np.full(len(value_N), prior.noise))
        self.posterior = _given(prior, self.points_ND, value_N, local_noise(even, self.points_ND, value_N))

    def _points(self, cells: Sequence[Mapping[str, Any]]) -> Array:
        names = {
            path: {axis_value(value): parameters.params(self.study, {path: value})[path] for value in listed}
            for path in self.study.axes
            if (listed := self.study.listed(path)) is not None
        }
        return self.space.encode(
            [{path: names[path][value] if path in names else value for path, value in cell.items()} for cell in cells]
        )

    def sensitivity(self, at: Mapping[str, Any], low: float, high: float) -> tuple[float, float, float]:
        """Return median and 95 % interval of the sensitivity over learning rates, the other axes at given values.

        The lowest loss is read where the mean of all draws is lowest: the lowest value of each draw by itself would
        take every ripple of it for a better learning rate.
        """
        rates = np.geomspace(low, high, RATES).clip(low, high)
        points_PD = self._coordinates(at, rates)
        nearest = ((self.points_ND - points_PD[:, None]) ** 2).sum(axis=2).argmin(axis=1)
        draws_SP = self.posterior.draws(points_PD, DRAWS, np.random.default_rng(0))
        loss_SP = np.clip(self.centre + self.scale * draws_SP, 0.0, 1.0) * self.initial_N[nearest]
        best = int(self.posterior.marginals(points_PD)[0].argmin())
        found_S = loss_SP.mean(axis=1) - loss_SP[:, best]
        middle, *ends = np.quantile(found_S, [0.5, 0.025, 0.975])
        return float(middle), float(ends[0]), float(ends[1])

    def _coordinates(self, at: Mapping[str, Any], rates: Array) -> Array:
        """Return the points of learning rates at a place, (P, D): also between the rates of an axis that lists them."""
        place = self.space.names.index(LEARNING_RATE)
        listed = self.study.listed(LEARNING_RATE)
        any_rate = rates[0] if listed is None else axis_value(listed[0])
        cell = {path: any_rate if path == LEARNING_RATE else at[path] for path in self.space.names}
        points_PD = np.tile(self._points([cell]), (len(rates), 1))
        points_PD[:, place] = [self.space.dimensions[place].encode(float(rate)) for rate in rates]
        return points_PD


def _given(prior: Prior, points_ND: Array, value_N: Array, noise_N: Array) -> Posterior:
    precision_N = noise_N**-2.0
    return Posterior(prior, points_ND, Sites(precision_N, precision_N * (value_N - prior.mean)))


def local_noise(posterior: Posterior, points_ND: Array, value_N: Array) -> Array:
    """Return the standard deviation of the noise around each reading, from the residuals of its nearest neighbours.

    A residual times the leave-one-out residual has the noise's variance as its expectation: with K the covariance of
    readings, noise included, they are s² (K⁻¹ y) and (K⁻¹ y) / diag(K⁻¹) (Rasmussen & Williams 2006, eq. 5.12).
    """
    variance_N = 1.0 / posterior.sites.precision_N
    inverse_NN = solve_triangular(posterior.lower_NN, np.diag(posterior.root_N), lower=True)
    product_N = variance_N * posterior.weight_N**2 / (inverse_NN**2).sum(axis=0)
    kernel = posterior.prior.kernel
    lengths_D = np.where(kernel.unordered_D, 1.0, kernel.lengths_D)
    count = min(len(value_N), max(FEWEST_NEIGHBOURS, round(NEIGHBOURS * len(value_N))))
    nearest_NK = cdist(points_ND / lengths_D, points_ND / lengths_D).argsort(axis=1, kind="stable")[:, :count]
    return np.maximum(np.sqrt(product_N[nearest_NK].mean(axis=1)), LEAST_NOISE)
