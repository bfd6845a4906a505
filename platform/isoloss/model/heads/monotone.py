"""The monotone head: one learnt increasing piecewise-linear function of linear logits."""

# N tokens, V vocabulary, M width, K pieces

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import Monotone
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head, at_least_float32

UNIT_SLOPE = math.log(math.e - 1)
"""Where softplus is 1."""


class MonotoneHead(Head):
    """Logits f(W h), f continuous and linear on each of K pieces (PLIF; Ganea et al. 2019, section 4).

    Slopes are softplus(``slopes_K``); continuity and f(0) = 0, to which softmax is blind, fix all else. f starts as
    exactly the identity, and logits at the linear head's scale.
    """

    def __init__(self, config: Monotone, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.std = vocab_size, model.initial_std
        self.pieces, self.reach, self.length = config.pieces, config.reach, 2 * config.reach / config.pieces
        self.weight_VM = nn.Parameter(torch.empty(vocab_size, model.width))
        self.slopes_K = nn.Parameter(torch.full((config.pieces,), UNIT_SLOPE))

    def initial_scale(self, name: str) -> float | None:
        return self.std if name == "weight_VM" else None

    def logits(self, hidden_NM: Tensor) -> Tensor:
        return self.function(at_least_float32(F.linear(hidden_NM, self.weight_VM)))

    def function(self, z_NV: Tensor) -> Tensor:
        """Return f of every number; N x V."""
        piece_NV = self._piece(z_NV)
        slope_NV, intercept_NV = (
            # One table a token: the gradient of gather is then summed over tokens apart, and the same on every run.
            table_K.to(z_NV.dtype).expand(len(z_NV), -1).gather(1, piece_NV)
            for table_K in self._tables()
        )
        return torch.addcmul(intercept_NV, slope_NV, z_NV)

    def last_matrix(self) -> Tensor:
        return self.weight_VM

    def _piece(self, z_NV: Tensor) -> Tensor:
        """Return which piece each number lies on: the outer ones have no end, and NaN is on any."""
        place_NV = (z_NV.detach() + self.reach) / self.length
        return place_NV.nan_to_num_(nan=0.0).clamp_(0, self.pieces - 1).long()

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Return slope and intercept of each piece; float64, in which summing over pieces loses nothing."""
        slope_K = F.softplus(self.slopes_K.double())
        # Neighbours meet at x: a + s x = a' + s' x.
        meet = self.length * torch.arange(1, self.pieces, device=slope_K.device, dtype=slope_K.dtype) - self.reach
        intercept_K = F.pad(torch.cumsum(-slope_K.diff() * meet, dim=0), (1, 0))
        return slope_K, intercept_K - intercept_K[self.pieces // 2]
