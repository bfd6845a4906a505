"""Sigsoftmax: one fixed pointwise function of linear logits, under which their matrix has no bound on its rank."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import Sigsoftmax
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head, at_least_float32


class SigsoftmaxHead(Head):
    """Logits z + ln sigmoid(z), z = W h: probabilities proportional to exp(z) sigmoid(z) (Kanai et al. 2018).

    Their slope by z is 3/2 at 0, so W starts narrower by as much and logits at the linear head's scale.
    """

    def __init__(self, config: Sigsoftmax, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.std = vocab_size, model.initial_std / 1.5
        self.weight_VM = nn.Parameter(torch.empty(vocab_size, model.width))

    def initial_scale(self, name: str) -> float | None:
        return self.std

    def logits(self, hidden_NM: Tensor) -> Tensor:
        z_NV = at_least_float32(F.linear(hidden_NM, self.weight_VM))
        return z_NV + F.logsigmoid(z_NV)

    def last_matrix(self) -> Tensor:
        return self.weight_VM
