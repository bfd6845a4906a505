"""Choosing a process's prior: the most probable mean, amplitude, lengths and noise given what was seen."""

# N observations, D dimensions, H hyper-parameters (mean, log amplitude, D log lengths, log noise)

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray

from isoloss.search.boundary.kernel import Array, Kernel
from isoloss.search.boundary.process import Conditioned, Observations, Posterior, Prior, condition

MOST_STEPS = 40
"""Evaluations of the evidence in one fit."""


@dataclass(frozen=True)
class Belief:
    """What is believed of a prior before anything is seen: Gaussian in the mean and in the logs of the rest.

    Each pair is a middle value and a spread; for all but the mean, the spread is of the natural logarithm. ``noise``
    with a spread of 0 is held fixed.
    """

    mean: tuple[float, float]
    amplitude: tuple[float, float]
    length: tuple[float, float]
    noise: tuple[float, float]

    def start(self, unordered_D: NDArray[np.bool_]) -> Prior:
        """Return the prior at the middle of the belief."""
        lengths_D = np.full(len(unordered_D), self.length[0])
        return Prior(self.mean[0], Kernel(self.amplitude[0], lengths_D, unordered_D), self.noise[0])

    def centre_and_spread(self, dimensions: int) -> tuple[Array, Array]:
        """Return middle and spread of every hyper-parameter, (H,) each."""
        pairs = [self.amplitude, *[self.length] * dimensions, self.noise]
        middle_H = np.array([self.mean[0], *(np.log(middle) for middle, _ in pairs)])
        return middle_H, np.array([self.mean[1], *(spread for _, spread in pairs)])


def packed(prior: Prior) -> Array:
    """Return the hyper-parameters of a prior as one vector, (H,)."""
    kernel = prior.kernel
    return np.array([prior.mean, np.log(kernel.amplitude), *np.log(kernel.lengths_D), np.log(prior.noise)])


def unpacked(theta_H: Array, unordered_D: NDArray[np.bool_]) -> Prior:
    """Return the prior of a vector of hyper-parameters."""
    kernel = Kernel(float(np.exp(theta_H[1])), np.exp(theta_H[2:-1]), unordered_D)
    return Prior(float(theta_H[0]), kernel, float(np.exp(theta_H[-1])))


def evidence_slopes(found: Conditioned, apart_DNN: Array) -> Array:
    """Return the slope of the log evidence in each hyper-parameter, (H,).

    Where expectation propagation has settled, the evidence is flat in its sites, so that only the explicit dependence
    on the prior counts: half the trace of (a aᵀ - (K + S⁻¹)⁻¹) dK (Seeger 2005; R&W 2006, eq. 5.9).
    """
    posterior = found.posterior
    weight_N, root_N = posterior.weight_N, posterior.root_N
    inverse_NN = scipy.linalg.cho_solve((posterior.lower_NN, True), np.diag(root_N), check_finite=False)
    pull_NN = 0.5 * (np.outer(weight_N, weight_N) - root_N[:, None] * inverse_NN)
    by_amplitude = 2.0 * float((pull_NN * found.covariance_NN).sum())
    by_length_D = posterior.prior.kernel.length_slopes(apart_DNN, pull_NN)
    return np.array([weight_N.sum(), by_amplitude, *by_length_D, found.noise_slope])


def fit(belief: Belief, seen: Observations, start: Prior) -> Prior:
    """Return the most probable prior given the observations, found by L-BFGS from a start.

    Raises FloatingPointError when the evidence is not finite there.
    """
    unordered_D = start.kernel.unordered_D
    middle_H, spread_H = belief.centre_and_spread(len(unordered_D))
    free_H = spread_H > 0.0
    theta_H = np.where(free_H, packed(start), middle_H)
    apart_DNN = start.kernel.differences(seen.points_ND, seen.points_ND)
    last: Posterior | None = None

    def loss(free: Array) -> tuple[float, Array]:
        nonlocal last
        theta_H[free_H] = free
        prior = unpacked(theta_H, unordered_D)
        found = condition(prior, seen, last, prior.kernel.of(apart_DNN))
        last = found.posterior
        off_H = (theta_H - middle_H)[free_H] / spread_H[free_H]
        slope_H = off_H / spread_H[free_H] - evidence_slopes(found, apart_DNN)[free_H]
        return 0.5 * float(off_H @ off_H) - found.log_evidence, slope_H

    reach_H = 3.0 * spread_H[free_H]
    bounds = list(zip(middle_H[free_H] - reach_H, middle_H[free_H] + reach_H, strict=True))
    found = scipy.optimize.minimize(
        loss, theta_H[free_H], method="L-BFGS-B", jac=True, bounds=bounds,
        options={"maxfun": MOST_STEPS, "ftol": 1e-5, "gtol": 1e-3},
    )  # fmt: skip
    if not np.isfinite(found.fun):
        raise FloatingPointError("the evidence of the observations is not finite")
    theta_H[free_H] = found.x
    return unpacked(theta_H, unordered_D)
