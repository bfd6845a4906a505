"""What one more trial would teach: the expected drop of the volume on the wrong side of the boundary."""

# C candidates, R references, P pending points, D dimensions

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, owens_t

from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import BoundaryMap
from isoloss.search.boundary.process import Posterior

TINY = 1e-9


def expected_drop(known: BoundaryMap, references_RD: Array, candidates_CD: Array, pending_PD: Array) -> Array:
    """Return how much of the space each candidate is expected to move to the right side, (C,).

    One-step stepwise uncertainty reduction (Bect et al. 2012) of each surface; where a reference is decided by the
    other surface already, there is nothing to gain. ``pending_PD`` are trials that run: they are taken to come out
    just as predicted (kriging believer; Ginsbourger et al. 2010), so that they lower variance and leave means.
    """
    surfaces = known.surfaces
    if len(pending_PD):
        surfaces = [
            surface.with_readings(pending_PD, _precision(share_P, surface.marginals(pending_PD)[1]))
            for surface, share_P in zip(surfaces, _shares(known, surfaces, pending_PD), strict=True)
        ]
    marginals = [surface.marginals(references_RD) for surface in surfaces]
    safe = [ndtr(-mean_R / np.sqrt(variance_R)) for mean_R, variance_R in marginals]
    drop_C = np.zeros(len(candidates_CD))
    for i, share_C in enumerate(_shares(known, surfaces, candidates_CD)):
        others_R = np.prod([one for j, one in enumerate(safe) if j != i], axis=0) * np.ones(len(references_RD))
        open_R = np.flatnonzero(np.minimum(safe[i], 1.0 - safe[i]) * others_R > 1e-4)  # elsewhere nothing is to gain
        mean_R, variance_R = (part[open_R] for part in marginals[i])
        _, variance_C = surfaces[i].marginals(candidates_CD)
        covariance_RC = surfaces[i].covariance(references_RD[open_R], candidates_CD)
        explained_RC = share_C * covariance_RC**2 / (variance_R[:, None] * variance_C)
        drop_RC = error_drop((np.abs(mean_R) / np.sqrt(variance_R))[:, None], explained_RC)
        drop_C += others_R[open_R] @ drop_RC
    return drop_C / len(references_RD)


def error_drop(height: Array, explained: Array) -> Array:
    """Return the expected drop of P(sign is wrong) of a Gaussian when a share of its variance is explained.

    ``height`` is |mean| / sd before, so that the error is Φ(-height); after, it is in expectation
    2 T(height, sqrt(1 - e) / sqrt(e)), with Owen's T (Owen 1956) and e the explained share.
    """
    explained = np.clip(explained, TINY, 1.0 - TINY)
    return np.asarray(ndtr(-height) - 2.0 * owens_t(height, np.sqrt(1.0 / explained - 1.0)))


def _shares(known: BoundaryMap, surfaces: list[Posterior], points_PD: Array) -> list[Array]:
    """Return the share of each surface's own variance at the points that one trial there is expected to explain."""
    mean_P, variance_P = surfaces[0].marginals(points_PD)
    shares = [sign_share(mean_P, variance_P, surfaces[0].prior.noise)]
    if known.slope is not None:
        slope = surfaces[1]
        read_P = ndtr(-mean_P / np.sqrt(variance_P + surfaces[0].prior.noise ** 2))  # a trial off the cliff reads none
        _, variance_P = slope.marginals(points_PD)
        shares.append(read_P * variance_P / (variance_P + slope.prior.noise**2))
    return shares


def sign_share(mean: Array, variance: Array, noise: float) -> Array:
    """Return the share of a Gaussian's variance that one noisy look at its sign explains: Var(E[f | sign]) / Var(f)."""
    spread = variance + noise**2
    z = mean / np.sqrt(spread)
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return np.asarray(variance / spread * density**2 / np.maximum(ndtr(z) * ndtr(-z), 1e-300))


def _precision(share: Array, variance: Array) -> Array:
    """Return the precision of a Gaussian reading that explains a share of the variance."""
    share = np.clip(share, TINY, 1.0 - 1e-6)
    return np.asarray(share / (variance * (1.0 - share)))
