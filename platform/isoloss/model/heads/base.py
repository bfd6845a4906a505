"""The protocol of an LM head: from hidden states to a distribution over V symbols, and the loss that trains it."""

# N tokens, V vocabulary, M width, D columns of the last matrix

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.model.loss import (
    TokenGradients,
    chunked_loss,
    chunked_sum,
    linear_cross_entropy,
    linear_losses,
    token_gradients,
)
from isoloss.tasks.base import UNSCORED


class Head(nn.Module):
    """A map from hidden states to a distribution over V symbols.

    A head gives ``logits`` whose softmax is its distribution, or overrides ``log_probabilities``. One whose logits are
    a product with its ``last_matrix`` says so (``linear``). Where a head trains on anything but cross-entropy it
    overrides ``token_loss``, and where that can be had faster, ``training_loss``.
    """

    vocab_size: int

    linear = False
    """Whether the logits are ``last_input`` times ``last_matrix``, plus ``last_bias``: nothing pointwise follows."""

    def logits(self, hidden_NM: Tensor) -> Tensor:
        """Return logits_NV."""
        raise NotImplementedError

    def initial_scale(self, name: str) -> float | None:
        """Return the standard deviation from which the parameter of this name is drawn; None leaves it as built."""
        raise NotImplementedError

    def log_probabilities(self, hidden_NM: Tensor) -> Tensor:
        """Return the log-probability of every symbol, in nats; N x V, float32."""
        return F.log_softmax(at_least_float32(self.logits(hidden_NM)), dim=-1)

    def cross_entropy(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return each token's cross-entropy in nats, 0 where the target is UNSCORED; float32, of all tokens at once."""
        return F.nll_loss(self.log_probabilities(hidden_NM), targets_N, ignore_index=UNSCORED, reduction="none")

    def token_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return what training minimises for each token, 0 where it is not scored; float32, of all tokens at once."""
        return self.cross_entropy(hidden_NM, targets_N)

    def training_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return the sum of ``token_loss`` over tokens; its gradients are computed with it, in chunks of tokens."""
        weight_VD = self.last_matrix()
        if self.linear and weight_VD is not None:
            return linear_cross_entropy(self.last_input(hidden_NM), weight_VD, targets_N, bias_V=self.last_bias())
        return chunked_sum(self.token_loss, hidden_NM, targets_N, self.trained(), self.vocab_size)

    def loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return each token's cross-entropy as measured, a chunk of tokens at a time; it has no gradient."""
        weight_VD = self.last_matrix()
        if self.linear and weight_VD is not None:
            return linear_losses(self.last_input(hidden_NM), weight_VD, targets_N, bias_V=self.last_bias())
        return chunked_loss(self.cross_entropy, hidden_NM, targets_N, self.vocab_size)

    def trained(self) -> list[Tensor]:
        """Return the tensors that training changes through the head."""
        return list(self.parameters())

    def last_matrix(self) -> Tensor | None:
        """Return weight_VD if the logits are, up to pointwise functions, its product with ``last_input``; else None."""
        return None

    def last_input(self, hidden_NM: Tensor) -> Tensor:
        """Return the input_ND of the last matrix."""
        return hidden_NM

    def last_bias(self) -> Tensor | None:
        """Return the bias_V that is added to the last matrix's product."""
        return None

    def logit_gradients(self, hidden_NM: Tensor, targets_N: Tensor) -> TokenGradients | None:
        """Return each token's gradient by the logits, as norm and as product with the last matrix; None if not linear.

        It is that of the cross-entropy, or of the loss that takes its place; penalties have no part in it.
        """
        weight_VD = self.last_matrix()
        if not self.linear or weight_VD is None:
            return None
        return token_gradients(self.last_input(hidden_NM), weight_VD, targets_N, bias_V=self.last_bias())


def at_least_float32(logits_NV: Tensor) -> Tensor:
    """Return logits in float32 where they have fewer digits."""
    return logits_NV.float() if logits_NV.dtype in (torch.bfloat16, torch.float16) else logits_NV
