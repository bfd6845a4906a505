"""A Gaussian process conditioned on readings and on one-sided observations, by expectation propagation."""

# N observations, P points, D dimensions, S draws

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs
from scipy.special import log_ndtr

from isoloss.search.boundary.kernel import Array, Kernel

MOST_SWEEPS = 100
TOLERANCE = 1e-3
"""Change of every site, in standard deviations of its own point, below which expectation propagation has settled."""

MEMORY, DAMPING, LEAST_DAMPING = 5, 0.5, 0.05
"""Anderson mixing of the sites: undamped, neighbouring sites overshoot together and may never settle. Where many of one
side stand together, half a step still overshoots, so that the steps are halved whenever they lead astray.
"""

ASTRAY = 1.3
"""Growth of the change from one sweep to the next that counts as astray."""

JITTER = 1e-6
"""Share of the prior variance that draws have on top at each point, so that near points leave them computable."""

HALF_LOG_2PI = 0.5 * float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class Observations:
    """What was seen of a latent surface: at ``points_ND``, ``value_N`` of the kind ``side_N``.

    Side 0 is a reading with Gaussian noise; +1 says that a noisy reading would lie above the value, -1 below it.
    """

    points_ND: Array
    value_N: Array
    side_N: Array

    def __len__(self) -> int:
        return len(self.value_N)


@dataclass(frozen=True)
class Prior:
    """A Gaussian process before it is conditioned: constant mean, kernel, and the noise of one observation (sd)."""

    mean: float
    kernel: Kernel
    noise: float


@dataclass(frozen=True)
class Sites:
    """The Gaussian that stands for each observation, in natural parameters: precision, and precision times mean."""

    precision_N: Array
    shift_N: Array

    def __len__(self) -> int:
        return len(self.precision_N)


@dataclass(frozen=True)
class View:
    """A posterior at some points: mean, variance, and the whitened covariance with its observations, (N, P)."""

    points_PD: Array
    mean_P: Array
    variance_P: Array
    whitened_NP: Array


class Posterior:
    """The process given its sites. Means and shifts are relative to the prior's mean inside, absolute in results."""

    def __init__(self, prior: Prior, points_ND: Array, sites: Sites, covariance_NN: Array | None = None) -> None:
        self.prior, self.points_ND, self.sites = prior, points_ND, sites
        covariance_NN = prior.kernel(points_ND, points_ND) if covariance_NN is None else covariance_NN
        self.root_N = np.sqrt(sites.precision_N)
        inner_NN = self.root_N[:, None] * covariance_NN * self.root_N
        inner_NN.flat[:: len(inner_NN) + 1] += 1.0  # the diagonal
        self.lower_NN = _cholesky(inner_NN)
        scaled_N = self.root_N * (covariance_NN @ sites.shift_N)
        # LAPACK refuses systems without unknowns, here and below.
        solved_N = dpotrs(self.lower_NN, scaled_N, lower=1)[0] if len(sites) else scaled_N
        self.weight_N = sites.shift_N - self.root_N * solved_N

    def _whitened(self, cross_NP: Array) -> Array:
        scaled_NP = self.root_N[:, None] * cross_NP
        return np.asarray(dtrtrs(self.lower_NN, scaled_NP, lower=1)[0]) if len(scaled_NP) else scaled_NP

    def marginals(self, points_PD: Array, cross_NP: Array | None = None) -> tuple[Array, Array]:
        """Return mean and variance of the latent surface at each point."""
        seen = self.view(points_PD, cross_NP)
        return seen.mean_P, seen.variance_P

    def view(self, points_PD: Array, cross_NP: Array | None = None) -> View:
        """Return the surface at the points, for further questions about them."""
        cross_NP = self.prior.kernel(self.points_ND, points_PD) if cross_NP is None else cross_NP
        whitened_NP = self._whitened(cross_NP)
        variance_P = self.prior.kernel.amplitude**2 - (whitened_NP**2).sum(0)
        floor = 1e-10 * self.prior.kernel.amplitude**2
        mean_P = self.prior.mean + cross_NP.T @ self.weight_N
        return View(points_PD, mean_P, np.maximum(variance_P, floor), whitened_NP)

    def covariance(self, left: View, right: View) -> Array:
        """Return the covariance of the latent surface between two views."""
        return self.prior.kernel(left.points_PD, right.points_PD) - left.whitened_NP.T @ right.whitened_NP

    def draws(self, points_PD: Array, count: int, rng: np.random.Generator) -> Array:
        """Return ``count`` joint draws of the latent surface at the points, (S, P)."""
        seen = self.view(points_PD)
        covariance_PP = self.covariance(seen, seen)
        covariance_PP.flat[:: len(covariance_PP) + 1] += JITTER * self.prior.kernel.amplitude**2
        root_PP = _cholesky(covariance_PP)
        return seen.mean_P + rng.standard_normal((count, len(points_PD))) @ root_PP.T

    def with_readings(self, points_PD: Array, precision_P: Array) -> Posterior:
        """Return the process after further readings that come out just as predicted: same mean, less variance."""
        mean_P, _ = self.marginals(points_PD)
        sites = Sites(
            np.concatenate([self.sites.precision_N, precision_P]),
            np.concatenate([self.sites.shift_N, precision_P * (mean_P - self.prior.mean)]),
        )
        return Posterior(self.prior, np.concatenate([self.points_ND, points_PD]), sites)


@dataclass(frozen=True)
class Conditioned:
    """A process conditioned on observations: its posterior, the log evidence, and whether the sites settled."""

    posterior: Posterior
    log_evidence: float
    settled: bool
    covariance_NN: Array
    noise_slope: float
    """Slope of the log evidence in the log of the noise."""


def condition(
    prior: Prior,
    seen: Observations,
    start: Posterior | None = None,
    covariance_NN: Array | None = None,
    tolerance: float = TOLERANCE,
) -> Conditioned:
    """Condition a process on observations by parallel expectation propagation (Minka 2001; R&W 2006, §3.6).

    ``start`` is the posterior of the first of the observations under the same or a similar prior. Readings are exact;
    one-sided observations are probit sites, which are log-concave, so that every site's precision stays positive.
    """
    covariance_NN = prior.kernel(seen.points_ND, seen.points_ND) if covariance_NN is None else covariance_NN
    value_N = seen.value_N - prior.mean
    exact_N = seen.side_N == 0
    precision_N, shift_N = np.zeros((2, len(seen)))
    if start is not None:
        count = len(start.sites)
        precision_N[:count], shift_N[:count] = start.sites.precision_N, start.sites.shift_N
        if count < len(seen):
            mean, variance = start.marginals(seen.points_ND[count:])
            precision_N[count:], shift_N[count:] = _matched(
                mean - prior.mean, variance, value_N[count:], seen.side_N[count:], prior.noise
            )
    precision_N[exact_N] = prior.noise**-2
    shift_N[exact_N] = precision_N[exact_N] * value_N[exact_N]
    sides = np.flatnonzero(~exact_N)
    mixer = _Anderson()
    settled = not len(sides)
    for sweep in range(MOST_SWEEPS):
        posterior = Posterior(prior, seen.points_ND, Sites(precision_N, shift_N), covariance_NN)
        mean_N, variance_N = posterior.marginals(seen.points_ND, covariance_NN)
        mean_N = mean_N - prior.mean
        away_N = 1.0 / (1.0 / variance_N - precision_N)  # the cavity: the posterior without the site itself
        centre_N = away_N * (mean_N / variance_N - shift_N)
        if settled or sweep == MOST_SWEEPS - 1:
            break
        precision, shift = _matched(centre_N[sides], away_N[sides], value_N[sides], seen.side_N[sides], prior.noise)
        sd, variance = np.sqrt(variance_N[sides]), variance_N[sides]
        settled = bool(
            np.max(np.abs(shift - shift_N[sides]) * sd + np.abs(precision - precision_N[sides]) * variance) < tolerance
        )
        now = np.concatenate([precision_N[sides], shift_N[sides]])
        new = mixer.step(now, np.concatenate([precision, shift]), positive=len(sides))
        precision_N[sides], shift_N[sides] = new[: len(sides)], new[len(sides) :]
    spread_N = away_N + prior.noise**2
    apart_N = centre_N - value_N
    z_N = seen.side_N * apart_N / np.sqrt(spread_N)
    site_N = np.where(exact_N, -HALF_LOG_2PI - 0.5 * np.log(spread_N) - 0.5 * apart_N**2 / spread_N, log_ndtr(z_N))
    ratio_N = np.exp(-0.5 * z_N**2 - HALF_LOG_2PI - log_ndtr(z_N))
    by_noise_N = np.where(exact_N, apart_N**2 / spread_N - 1.0, -z_N * ratio_N) * prior.noise**2 / spread_N
    evidence = (
        -np.log(np.diag(posterior.lower_NN)).sum()
        + 0.5 * mean_N @ shift_N
        + (site_N + 0.5 * np.log(away_N / variance_N) + 0.5 * (centre_N**2 / away_N - mean_N**2 / variance_N)).sum()
    )
    return Conditioned(posterior, float(evidence), settled, covariance_NN, float(by_noise_N.sum()))


def _cholesky(matrix: Array) -> Array:
    """Return the lower Cholesky factor; raises numpy's LinAlgError when the matrix is not positive definite.

    LAPACK is called directly: at tens of observations, scipy's wrappers take longer than the factor itself.
    """
    if not len(matrix):
        return matrix
    lower, failed = dpotrf(matrix, lower=1)
    if failed:
        raise np.linalg.LinAlgError(f"minor {failed} of {len(matrix)} is not positive definite")
    return np.asarray(lower)


class _Anderson:
    """Anderson mixing of a fixed-point iteration (Walker & Ni 2011), with plain damped steps where it leads astray."""

    def __init__(self) -> None:
        self.seen: list[tuple[Array, Array]] = []
        self.damping = DAMPING

    def step(self, now: Array, image: Array, positive: int) -> Array:
        """Return the next point after ``now``, whose image is given; its first ``positive`` entries stay so."""
        change = image - now
        if self.seen and np.linalg.norm(change) > ASTRAY * np.linalg.norm(self.seen[-1][1]):
            self.seen.clear()
            self.damping = max(0.5 * self.damping, LEAST_DAMPING)
        self.seen = [*self.seen[-MEMORY:], (now, change)]
        plain = now + self.damping * change
        if len(self.seen) < 2:
            return plain
        all_now, all_changes = (np.array(part) for part in zip(*self.seen, strict=True))
        moves, changes = (all_now[1:] - all_now[:-1]).T, (all_changes[1:] - all_changes[:-1]).T
        share = np.linalg.lstsq(changes, change, rcond=1e-10)[0]
        mixed = plain - (moves + self.damping * changes) @ share
        return mixed if (mixed[:positive] > 0.0).all() else plain


def _matched(centre: Array, away: Array, value: Array, side: Array, noise: float) -> tuple[Array, Array]:
    """Return the sites whose product with the cavity has the mean and variance of the one-sided likelihood's."""
    spread = away + noise**2
    z = side * (centre - value) / np.sqrt(spread)
    ratio = np.exp(-0.5 * z**2 - HALF_LOG_2PI - log_ndtr(z))
    pull = side * ratio / np.sqrt(spread)  # slope of the log normaliser in the cavity's mean
    bend = ratio * (z + ratio) / spread  # minus its curvature
    remains = 1.0 - away * bend  # share of the cavity's variance that the tilted distribution keeps
    precision = np.maximum(bend / remains, 1e-12)
    return precision, precision * centre + pull / remains
