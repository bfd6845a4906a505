"""The linear head: logits W h, with W its own or the input embedding's."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head


class LinearHead(Head):
    """Logits W h; a tied head reads the first V rows of the input embedding and adds no parameter."""

    def __init__(self, vocab_size: int, model: Decoder, tied_to: nn.Embedding | None) -> None:
        super().__init__()
        self.vocab_size, self.std = vocab_size, model.initial_std
        # A list hides the embedding from torch's registry: the model owns it, and would otherwise count it twice.
        self.tied_to = [] if tied_to is None else [tied_to]
        if tied_to is None:
            self.weight_VM = nn.Parameter(torch.empty(vocab_size, model.width))

    def initial_scale(self, name: str) -> float:
        return self.std

    def logits(self, hidden_NM: Tensor) -> Tensor:
        return F.linear(hidden_NM, self.tied_to[0].weight[: self.vocab_size] if self.tied_to else self.weight_VM)
