"""Hidden states that come in batches: their spectrum and anisotropy from sums in float64, and a sample of them."""

# N tokens, M width, S tokens of the sample

from __future__ import annotations

import math

import torch
from torch import Tensor

from isoloss.probe.spectrum import Spectrum, direction_sum, mean_cosine
from isoloss.probe.survival import decompose, gram


class HiddenStates:
    """What is kept of hidden states of one width: M x M sums, and the first ``sampled`` of them."""

    def __init__(self, width: int, sampled: int, device: torch.device) -> None:
        self.count = 0
        self._gram_MM = torch.zeros(width, width, dtype=torch.float64, device=device)
        self._directions_M = torch.zeros(width, dtype=torch.float64, device=device)
        self._sampled = sampled
        self._sample = list[Tensor]()

    def add(self, hidden_NM: Tensor) -> None:
        self._gram_MM += gram(hidden_NM)
        self._directions_M += direction_sum(hidden_NM)
        if self.count < self._sampled:
            self._sample.append(hidden_NM[: self._sampled - self.count])
        self.count += len(hidden_NM)

    @property
    def sample_SM(self) -> Tensor:
        return torch.cat(self._sample)

    def spectrum(self) -> Spectrum:
        """Return that of the N x M matrix of all hidden states."""
        return Spectrum(decompose(self._gram_MM, self.count, self._sample[0].dtype).singular_R)

    def anisotropy(self) -> float:
        """Return the mean cosine of two different tokens' hidden states; NaN of one token."""
        return mean_cosine(self._directions_M, self.count) if self.count > 1 else math.nan
