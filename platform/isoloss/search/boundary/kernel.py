"""The covariance of a latent surface over the unit cube: Matérn-5/2 on numbers, Hamming on unordered codes."""

# N, P points, D dimensions

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Array = NDArray[np.float64]
ROOT_5 = 5.0**0.5


@dataclass(frozen=True)
class Kernel:
    """s² k(x, x'): Matérn-5/2 with one length a dimension (Rasmussen & Williams 2006, eq. 4.17, 5.2).

    ``lengths_D`` are in fractions of each axis; where ``unordered_D`` is true, a dimension holds codes, and two codes
    that differ multiply the covariance by exp(-1 / length).
    """

    amplitude: float
    lengths_D: Array
    unordered_D: NDArray[np.bool_]

    def __call__(self, a_ND: Array, b_PD: Array) -> Array:
        """Return the covariance of every pair, (N, P)."""
        weight_D = self.lengths_D[~self.unordered_D]
        root_NP = ROOT_5 * cdist(a_ND[:, ~self.unordered_D] / weight_D, b_PD[:, ~self.unordered_D] / weight_D)
        covariance_NP = self.amplitude**2 * (1.0 + root_NP + root_NP**2 / 3.0) * np.exp(-root_NP)
        for d in np.flatnonzero(self.unordered_D):
            covariance_NP *= np.where(a_ND[:, d, None] == b_PD[:, d], 1.0, np.exp(-1.0 / self.lengths_D[d]))
        return np.asarray(covariance_NP)

    def differences(self, a_ND: Array, b_PD: Array) -> Array:
        """Return (D, N, P): squared differences, or for unordered dimensions whether two codes differ."""
        apart_DNP = (a_ND.T[:, :, None] - b_PD.T[:, None, :]) ** 2
        apart_DNP[self.unordered_D] = apart_DNP[self.unordered_D] != 0.0
        return apart_DNP

    def of(self, apart_DNP: Array) -> Array:
        """Return the covariance at given ``differences``."""
        distance_NP, unlike_NP = self._distances(apart_DNP)
        root_NP = ROOT_5 * distance_NP
        return self.amplitude**2 * (1.0 + root_NP + root_NP**2 / 3.0) * np.exp(-root_NP - unlike_NP)

    def _distances(self, apart_DNP: Array) -> tuple[Array, Array]:
        weight_D = np.where(self.unordered_D, 0.0, self.lengths_D**-2.0)
        unlike_D = np.where(self.unordered_D, 1.0 / self.lengths_D, 0.0)
        return np.sqrt(np.tensordot(weight_D, apart_DNP, 1)), np.tensordot(unlike_D, apart_DNP, 1)

    def length_slopes(self, apart_DNN: Array, weight_NN: Array) -> Array:
        """Return, for each dimension, the sum of ``weight`` times the covariance's slope in the log of its length."""
        distance_NN, unlike_NN = self._distances(apart_DNN)
        root_NN = ROOT_5 * distance_NN
        falling_NN = self.amplitude**2 * np.exp(-root_NN - unlike_NN) * weight_NN
        near_NN = falling_NN * (5.0 / 3.0) * (1.0 + root_NN)
        same_NN = falling_NN * (1.0 + root_NN + root_NN**2 / 3.0)
        return np.array([
            (same_NN * apart_NN).sum() / length if unordered else (near_NN * apart_NN).sum() / length**2
            for apart_NN, length, unordered in zip(apart_DNN, self.lengths_D, self.unordered_D, strict=True)
        ])  # fmt: skip
