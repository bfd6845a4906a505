"""LM heads: one file a head behind the protocol of ``base.Head``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from isoloss.config import heads as config
from isoloss.config.parts import Decoder
from isoloss.model.heads.adaptive import AdaptiveHead
from isoloss.model.heads.backward_rank import BackwardRankHead
from isoloss.model.heads.base import Head
from isoloss.model.heads.dummy_classes import DummyClassesHead
from isoloss.model.heads.experts import ExpertsHead
from isoloss.model.heads.linear import LinearHead
from isoloss.model.heads.low_rank import LowRankHead
from isoloss.model.heads.mixture import MixtureHead
from isoloss.model.heads.monotone import MonotoneHead
from isoloss.model.heads.projected_update import ProjectedUpdateHead
from isoloss.model.heads.sigsoftmax import SigsoftmaxHead
from isoloss.model.heads.sparse import SparseHead
from isoloss.model.heads.spherical import SphericalHead
from isoloss.model.heads.wide import WideHead

BUILT: dict[type, Callable[[Any, int, Decoder, nn.Embedding], Head]] = {
    config.Linear: LinearHead,
    config.LowRank: LowRankHead,
    config.Mixture: MixtureHead,
    config.Sigsoftmax: SigsoftmaxHead,
    config.Monotone: MonotoneHead,
    config.Sparsemax: SparseHead,
    config.Entmax: SparseHead,
    config.Spherical: SphericalHead,
    config.Adaptive: AdaptiveHead,
    config.Wide: WideHead,
    config.Experts: ExpertsHead,
    config.BackwardRank: BackwardRankHead,
    config.ProjectedUpdate: ProjectedUpdateHead,
    config.DummyClasses: DummyClassesHead,
}


def build_head(declared: config.Head, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> Head:
    """Return the declared head; ``initial_scale`` says which of its parameters are still to be drawn."""
    return BUILT[type(declared)](declared, vocab_size, model, embedding)
