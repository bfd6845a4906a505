"""A mixture of softmaxes: the log-probabilities of all contexts have no bound on their rank."""

# N tokens, V vocabulary, M width, D columns of the last matrix, K components, R = N * K rows

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from isoloss.config.heads import Mixture
from isoloss.config.parts import Decoder
from isoloss.model import loss as losses
from isoloss.model.heads.base import Head, at_least_float32
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
        return self._mixed(hidden_NM, torch.stack(components, dim=1), targets_N)

    def training_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        # A chunk holds the logits of all components.
        symbols = self.vocab_size * self.components
        tokens = min(losses.chunk_tokens(symbols, 4, hidden_NM.device.type), len(hidden_NM))
        workspace = at_least_float32(hidden_NM.new_empty(0)).new_empty(tokens * symbols)

        def token_loss(hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
            targets_R = targets_N.clamp(min=0).repeat_interleave(self.components)
            inputs_RD = self._inputs(hidden_NM).flatten(0, 1)
            loss_R: Tensor = _CrossEntropy.apply(inputs_RD, self.out_VD, targets_R, workspace)
            return self._mixed(hidden_NM, loss_R.view(-1, self.components), targets_N)

        return losses.chunked_sum(token_loss, hidden_NM, targets_N, self.trained(), symbols)

    def _inputs(self, hidden_NM: Tensor) -> Tensor:
        """Return the input_NKD of the last matrix in each component."""
        return F.linear(hidden_NM, self.in_KDM.flatten(0, 1)).tanh().unflatten(1, self.in_KDM.shape[:2])

    def _log_prior(self, hidden_NM: Tensor) -> Tensor:
        return F.log_softmax(at_least_float32(F.linear(hidden_NM, self.prior_KM)), dim=-1)

    def _mixed(self, hidden_NM: Tensor, loss_NK: Tensor, targets_N: Tensor) -> Tensor:
        """Return the mixture's cross-entropy from those of its components."""
        loss_N = -torch.logsumexp(self._log_prior(hidden_NM) - loss_NK, dim=-1)
        return loss_N.masked_fill(targets_N == UNSCORED, 0.0)


class _CrossEntropy(torch.autograd.Function):
    """Each row's cross-entropy of logits W x; they, and then their gradients, all live in one workspace.

    A row's gradient may be asked for at any weight, which its mixture's other components decide. The workspace must
    not change before: torch raises an error if it did.
    """

    @staticmethod
    def forward(ctx: Any, inputs_RD: Tensor, weight_VD: Tensor, targets_R: Tensor, workspace: Tensor) -> Tensor:
        rows, symbols = len(inputs_RD), len(weight_VD)
        logits_RV = workspace[: rows * symbols].view(rows, symbols)
        if inputs_RD.dtype == logits_RV.dtype:
            torch.mm(inputs_RD, weight_VD.T, out=logits_RV)
        else:
            logits_RV.copy_(inputs_RD @ weight_VD.T.to(inputs_RD.dtype))
        logits_RV -= logits_RV.amax(1, keepdim=True)
        targets_R1 = targets_R[:, None]
        target_logits_R1 = logits_RV.gather(1, targets_R1)
        # Without the target's own term, 1 - p of a learnt target keeps its digits.
        gradient_RV = logits_RV.exp_().scatter_(1, targets_R1, 0.0)
        others_R1 = gradient_RV.sum(1, keepdim=True)
        gradient_RV.scatter_(1, targets_R1, -others_R1)
        ctx.save_for_backward(inputs_RD, weight_VD, gradient_RV, others_R1 + target_logits_R1.exp())
        return (torch.log1p(others_R1 + torch.expm1(target_logits_R1)) - target_logits_R1)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer_R: Tensor) -> Any:
        inputs_RD, weight_VD, gradient_RV, sum_R1 = ctx.saved_tensors
        dtype = inputs_RD.dtype
        scale_R1 = outer_R[:, None] / sum_R1
        gradient_RV = gradient_RV.to(dtype)
        by_inputs_RD = gradient_RV @ weight_VD.to(dtype) * scale_R1
        by_weight_VD = gradient_RV.T @ (inputs_RD * scale_R1).to(dtype)
        return by_inputs_RD.to(dtype), by_weight_VD.to(weight_VD.dtype), None, None
