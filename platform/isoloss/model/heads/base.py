"""The protocol of an LM head: from hidden states to each token's loss."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.tasks.base import UNSCORED


class Head(nn.Module):
    """A map from hidden states to a distribution over V symbols.

    A head gives ``logits`` whose softmax is its distribution, or overrides ``log_probabilities`` and ``loss``.
    """

    def logits(self, hidden_NM: Tensor) -> Tensor:
        """Return logits_NV."""
        raise NotImplementedError

    def initial_scale(self, name: str) -> float:
        """Return the standard deviation from which the parameter of this name is drawn."""
        raise NotImplementedError

    def log_probabilities(self, hidden_NM: Tensor) -> Tensor:
        """Return the log-probability of every symbol, in nats; N x V, float32."""
        return F.log_softmax(_at_least_float32(self.logits(hidden_NM)), dim=-1)

    def loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return each token's cross-entropy in nats, 0 where the target is UNSCORED; float32."""
        logits_NV = _at_least_float32(self.logits(hidden_NM))
        return F.cross_entropy(logits_NV, targets_N, ignore_index=UNSCORED, reduction="none")


def _at_least_float32(logits_NV: Tensor) -> Tensor:
    return logits_NV.float() if logits_NV.dtype in (torch.bfloat16, torch.float16) else logits_NV
