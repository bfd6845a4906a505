"""Adaptive softmax: symbols in clusters by id, the later clusters read through fewer dimensions (Grave et al. 2017)."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import torch
from torch import Tensor, nn

from isoloss.config.heads import Adaptive
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head
from isoloss.tasks.base import UNSCORED


class AdaptiveHead(Head):
    """p(symbol) = p(cluster | h) p(symbol | cluster, h); the symbols of the first cluster are clusters of their own.

    It is a distribution over V symbols like any other, but not every one: the logits of later clusters have rank
    M / narrowing^i only, and one logit moves all symbols of a cluster together. Probabilities do not start uniform: a
    later cluster gets as much at first as one symbol of the first. All is computed in float32, also under autocast.
    """

    def __init__(self, config: Adaptive, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.model = vocab_size, model
        ends = config.ends(vocab_size)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(model.width, vocab_size, ends, config.narrowing, head_bias=False)

    def initial_scale(self, name: str) -> float | None:
        """Return the linear head's scale for the first cluster; a later one's matrices multiply to it."""
        width, std = self.model.width, self.model.initial_std
        if name.startswith("softmax.head"):
            return std
        into = self.get_parameter(name).shape[1]
        return width**-0.5 if name.endswith(".0.weight") else std * (width / into) ** 0.5

    def log_probabilities(self, hidden_NM: Tensor) -> Tensor:
        with torch.autocast(hidden_NM.device.type, enabled=False):
            return self.softmax.log_prob(hidden_NM.float())

    def cross_entropy(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return each token's cross-entropy; only the clusters of the targets are computed."""
        scored_N = targets_N != UNSCORED
        with torch.autocast(hidden_NM.device.type, enabled=False):
            # Symbol 0 is in the first cluster, which is computed for every token anyhow.
            log_probability_N = self.softmax(hidden_NM.float(), targets_N.where(scored_N, 0)).output
        return (-log_probability_N).where(scored_N, 0.0)
