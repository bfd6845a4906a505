"""The low-rank head: logits A B h, whose gradient reaches h through D dimensions only."""

# N tokens, V vocabulary, M width, D head rank

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import LowRank
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head


class LowRankHead(Head):
    """Logits A B h with A of V x D and B of D x M.

    B h has unit variance at initialisation and A takes up the rest, so that logits start at the linear head's scale
    whatever the rank.
    """

    linear = True

    def __init__(self, config: LowRank, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        rank = config.rank
        self.scales = {"out_VD": model.initial_std * (model.width / rank) ** 0.5, "in_DM": model.width**-0.5}
        self.out_VD = nn.Parameter(torch.empty(vocab_size, rank))
        self.in_DM = nn.Parameter(torch.empty(rank, model.width))

    def initial_scale(self, name: str) -> float | None:
        return self.scales[name]

    def logits(self, hidden_NM: Tensor) -> Tensor:
        return F.linear(self.last_input(hidden_NM), self.out_VD)

    def last_matrix(self) -> Tensor:
        return self.out_VD

    def last_input(self, hidden_NM: Tensor) -> Tensor:
        return F.linear(hidden_NM, self.in_DM)
