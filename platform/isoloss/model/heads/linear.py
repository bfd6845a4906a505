"""The linear head: logits W h, with W its own or the input embedding's; scaled, shifted and bounded where asked."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import Linear
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head, at_least_float32
from isoloss.model.loss import linear_cross_entropy
from isoloss.tasks.base import UNSCORED


class LinearHead(Head):
    """Logits c tanh(z / c), z = s W h + b; a tied head's W is the first V rows of the input embedding.

    W starts as it would without ``scale`` s, so that the initial logits are scaled too; b starts at 0.
    """

    def __init__(self, config: Linear, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.config, self.vocab_size, self.std = config, vocab_size, model.initial_std
        self.linear = config.softcap is None
        # A list hides the embedding from torch's registry: the model owns it, and would otherwise count it twice.
        self.tied_to = [embedding] if config.tied else []
        if not config.tied:
            self.weight_VM = nn.Parameter(torch.empty(vocab_size, model.width))
        self.bias_V = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None

    def initial_scale(self, name: str) -> float | None:
        return None if name == "bias_V" else self.std

    def logits(self, hidden_NM: Tensor) -> Tensor:
        logits_NV = F.linear(self.last_input(hidden_NM), self.last_matrix(), self.bias_V)
        if self.config.softcap is None:
            return logits_NV
        return self.config.softcap * torch.tanh(at_least_float32(logits_NV) / self.config.softcap)

    def token_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV = at_least_float32(self.logits(hidden_NM))
        loss_N = F.cross_entropy(logits_NV, targets_N, ignore_index=UNSCORED, reduction="none")
        if not self.config.z_loss:
            return loss_N
        log_z_N = torch.logsumexp(logits_NV, dim=-1).masked_fill(targets_N == UNSCORED, 0.0)
        return loss_N + self.config.z_loss * log_z_N**2

    def training_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        if not self.linear or not self.config.z_loss:
            return super().training_loss(hidden_NM, targets_N)
        input_NM, weight_VM = self.last_input(hidden_NM), self.last_matrix()
        return linear_cross_entropy(input_NM, weight_VM, targets_N, bias_V=self.bias_V, z_loss=self.config.z_loss)

    def last_matrix(self) -> Tensor:
        return self.tied_to[0].weight[: self.vocab_size] if self.tied_to else self.weight_VM

    def last_input(self, hidden_NM: Tensor) -> Tensor:
        return hidden_NM if self.config.scale == 1 else hidden_NM * self.config.scale

    def last_bias(self) -> Tensor | None:
        return self.bias_V

    def trained(self) -> list[Tensor]:
        return [*self.parameters(), *(embedding.weight for embedding in self.tied_to)]
