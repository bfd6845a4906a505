"""A mixture of softmaxes: the log-probabilities of all contexts have no bound on their rank."""

# N tokens, V vocabulary, M width, D columns of the last matrix, K components

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import Mixture
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head, at_least_float32
from isoloss.model.loss import mixture_cross_entropy
from isoloss.tasks.base import UNSCORED

TANH_POWER = 0.3942945
"""E[tanh(x)^2] for x of N(0, 1)."""


class MixtureHead(Head):
    """The sum over k of pi_k(h) softmax(A tanh(B_k h)), pi a softmax of K linear functions of h (Yang et al. 2018).

    A is V x D and each B_k is D x M. B_k h has unit variance at initialisation and pi is nearly uniform, so that the
    mixture's log-probabilities are to first order A times the mean over k of tanh(B_k h), whose variance is
    ``TANH_POWER`` / K. A takes up the rest, so that they start at the linear head's scale whatever D and K.
    """

    def __init__(self, config: Mixture, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.components = vocab_size, config.components
        rank = config.rank or model.width
        self.scales = {
            "out_VD": model.initial_std * (model.width * config.components / (rank * TANH_POWER)) ** 0.5,
            "in_KDM": model.width**-0.5,
            "prior_KM": model.initial_std,
        }
        self.out_VD = nn.Parameter(torch.empty(vocab_size, rank))
        self.in_KDM = nn.Parameter(torch.empty(config.components, rank, model.width))
        self.prior_KM = nn.Parameter(torch.empty(config.components, model.width))

    def initial_scale(self, name: str) -> float | None:
        return self.scales[name]

    def log_probabilities(self, hidden_NM: Tensor) -> Tensor:
        logits_NKV = at_least_float32(F.linear(self._inputs(hidden_NM), self.out_VD))
        return torch.logsumexp(self._log_prior(hidden_NM)[:, :, None] + F.log_softmax(logits_NKV, dim=-1), dim=1)

    def cross_entropy(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        components = [
            F.cross_entropy(
                at_least_float32(F.linear(input_ND, self.out_VD)), targets_N, ignore_index=UNSCORED, reduction="none"
            )
            for input_ND in self._inputs(hidden_NM).unbind(1)
        ]
        loss_N = -torch.logsumexp(self._log_prior(hidden_NM) - torch.stack(components, dim=1), dim=-1)
        return loss_N.masked_fill(targets_N == UNSCORED, 0.0)

    def training_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.loss(hidden_NM, targets_N).sum()
        total: Tensor = mixture_cross_entropy(
            self._inputs(hidden_NM), self.out_VD, self._log_prior(hidden_NM), targets_N
        )
        return total

    def _inputs(self, hidden_NM: Tensor) -> Tensor:
        """Return the input_NKD of the last matrix in each component."""
        return F.linear(hidden_NM, self.in_KDM.flatten(0, 1)).tanh().unflatten(1, self.in_KDM.shape[:2])

    def _log_prior(self, hidden_NM: Tensor) -> Tensor:
        return F.log_softmax(at_least_float32(F.linear(hidden_NM, self.prior_KM)), dim=-1)
