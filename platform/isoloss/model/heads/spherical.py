"""Spherical and Taylor softmax: probabilities proportional to a quadratic function of linear logits."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import Spherical
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head, at_least_float32


class SphericalHead(Head):
    """Logits ln(z^2 + epsilon), or of ``taylor`` ln(1 + z + z^2 / 2), z = W h (de Brébisson & Vincent 2016).

    Neither logarithm can overflow or reach -inf for |z| below 1e19: the first is at least ln(epsilon), the second
    at least -ln 2, at z = -1.

    ln(z^2 + epsilon) has no slope at 0 and is steepest at |z| = sqrt(epsilon), where z starts at any width: the initial
    loss is then ln V + 0.16 (ln 2 - E[ln(1 + x^2)], x of N(0, 1)). Taylor logits have slope 1 at 0 and start at
    the linear head's scale.
    """

    def __init__(self, config: Spherical, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.taylor, self.epsilon = vocab_size, config.taylor, config.epsilon
        self.std = model.initial_std if config.taylor else (config.epsilon / model.width) ** 0.5
        self.weight_VM = nn.Parameter(torch.empty(vocab_size, model.width))

    def initial_scale(self, name: str) -> float | None:
        return self.std

    def logits(self, hidden_NM: Tensor) -> Tensor:
        z_NV = at_least_float32(F.linear(hidden_NM, self.weight_VM))
        return torch.log1p(z_NV + z_NV.square() / 2) if self.taylor else torch.log(z_NV.square() + self.epsilon)

    def last_matrix(self) -> Tensor:
        return self.weight_VM
