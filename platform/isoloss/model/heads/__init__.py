"""LM heads: one file a head behind the protocol of ``base.Head``."""

from __future__ import annotations

from torch import nn

from isoloss.config.heads import Linear, LowRank
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head
from isoloss.model.heads.linear import LinearHead
from isoloss.model.heads.low_rank import LowRankHead


def build_head(config: Linear | LowRank, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> Head:
    """Return the declared head, not yet initialised."""
    if isinstance(config, LowRank):
        return LowRankHead(vocab_size, model, config.rank)
    return LinearHead(vocab_size, model, embedding if config.tied else None)
