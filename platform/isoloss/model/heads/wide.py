"""The wide head: the last matrix has more columns than the hidden state has numbers."""

# N tokens, V vocabulary, M width, D columns of the last matrix

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import Wide
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head

SILU_POWER = 0.3557755
"""E[silu(x)^2] for x of N(0, 1)."""


class WideHead(Head):
    """Logits A u, A of V x D; u = B h, or gated u = silu(C h) * (B h) as in SwiGLU (Shazeer 2020).

    B h and C h have unit variance at initialisation, a gated u then has ``SILU_POWER``. A takes up the rest, so that
    logits start at the linear head's scale whatever D.
    """

    linear = True

    def __init__(self, config: Wide, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.gated = vocab_size, config.gated
        inner, power = config.inner(model.width), SILU_POWER if config.gated else 1.0
        self.out_std = model.initial_std * (model.width / (inner * power)) ** 0.5
        self.in_std = model.width**-0.5
        self.out_VD = nn.Parameter(torch.empty(vocab_size, inner))
        self.in_DM = nn.Parameter(torch.empty(inner, model.width))
        if config.gated:
            self.gate_DM = nn.Parameter(torch.empty(inner, model.width))

    def initial_scale(self, name: str) -> float | None:
        return self.out_std if name == "out_VD" else self.in_std

    def logits(self, hidden_NM: Tensor) -> Tensor:
        return F.linear(self.last_input(hidden_NM), self.out_VD)

    def last_matrix(self) -> Tensor:
        return self.out_VD

    def last_input(self, hidden_NM: Tensor) -> Tensor:
        input_ND = F.linear(hidden_NM, self.in_DM)
        return F.silu(F.linear(hidden_NM, self.gate_DM)) * input_ND if self.gated else input_ND
