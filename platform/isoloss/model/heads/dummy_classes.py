"""A control: the linear head with output classes that are never a target."""

from __future__ import annotations

from torch import nn

from isoloss.config.heads import DummyClasses, Linear
from isoloss.config.parts import Decoder
from isoloss.model.heads.linear import LinearHead


class DummyClassesHead(LinearHead):
    """The linear head over V symbols and ``count`` classes after them, which no target ever is (Murugan 2026)."""

    def __init__(self, config: DummyClasses, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__(Linear(), vocab_size + config.count, model, embedding)
