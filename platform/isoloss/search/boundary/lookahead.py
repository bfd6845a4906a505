"""What one more trial would teach: the expected drop of the volume on the wrong side of the boundary."""

# C candidates, R references, P pending points, D dimensions

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, owens_t

from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import BoundaryMap
from isoloss.search.boundary.process import View

TINY = 1e-9

NEGLIGIBLE = 1e-4
"""Probability of being on the wrong side at a reference below which nothing is to gain there."""


class Lookahead:
    """What one more trial would teach a map, averaged over references, (R, D).

    ``pending_PD`` are trials that run: they are taken to come out just as predicted (kriging believer; Ginsbourger et
    al. 2010), so that they lower variance and leave means.
    """

    def __init__(self, known: BoundaryMap, references_RD: Array, pending_PD: Array) -> None:
        self.surfaces = known.surfaces
        if len(pending_PD):
            views = [surface.view(pending_PD) for surface in self.surfaces]
            self.surfaces = [
                surface.with_readings(pending_PD, _precision(share_P, view.variance_P))
                for surface, view, share_P in zip(self.surfaces, views, self._shares(views), strict=True)
            ]
        self.references = len(references_RD)
        self.sights = []
        views = [surface.view(references_RD) for surface in self.surfaces]
        safe = [ndtr(-view.mean_P / np.sqrt(view.variance_P)) for view in views]
        for i, view in enumerate(views):
            others_R = safe[1 - i] if len(safe) > 1 else np.ones(self.references)
            open_R = np.minimum(safe[i], 1.0 - safe[i]) * others_R > NEGLIGIBLE
            at = View(view.points_PD[open_R], view.mean_P[open_R], view.variance_P[open_R], view.whitened_NP[:, open_R])
            self.sights.append((at, others_R[open_R]))

    def drop(self, candidates_CD: Array) -> Array:
        """Return how much of the space each candidate is expected to move to the right side, (C,).

        One-step stepwise uncertainty reduction (Bect et al. 2012) of each surface; where a reference is decided by
        the other surface already, there is nothing to gain.
        """
        drop_C = np.zeros(len(candidates_CD))
        views = [surface.view(candidates_CD) for surface in self.surfaces]
        for surface, view, share_C, (at, others_R) in zip(
            self.surfaces, views, self._shares(views), self.sights, strict=True
        ):
            covariance_RC = surface.covariance(at, view)
            explained_RC = share_C * covariance_RC**2 / (at.variance_P[:, None] * view.variance_P)
            drop_C += others_R @ error_drop((np.abs(at.mean_P) / np.sqrt(at.variance_P))[:, None], explained_RC)
        return drop_C / self.references

    def _shares(self, views: list[View]) -> list[Array]:
        """Return the share of each surface's own variance that one trial at the points is expected to explain."""
        cliff, noise = views[0], self.surfaces[0].prior.noise
        shares = [sign_share(cliff.mean_P, cliff.variance_P, noise)]
        for surface, view in zip(self.surfaces[1:], views[1:], strict=True):
            read_P = ndtr(-cliff.mean_P / np.sqrt(cliff.variance_P + noise**2))  # a trial off the cliff reads none
            shares.append(read_P * view.variance_P / (view.variance_P + surface.prior.noise**2))
        return shares


def error_drop(height: Array, explained: Array) -> Array:
    """Return the expected drop of P(sign is wrong) of a Gaussian when a share of its variance is explained.

    ``height`` is |mean| / sd before, so that the error is Φ(-height); after, it is in expectation
    2 T(height, sqrt(1 - e) / sqrt(e)), with Owen's T (Owen 1956) and e the explained share.
    """
    explained = np.clip(explained, TINY, 1.0 - TINY)
    return np.asarray(ndtr(-height) - 2.0 * owens_t(height, np.sqrt(1.0 / explained - 1.0)))


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
