"""Heads, as declarations: from the hidden state of M numbers to V logits."""

from __future__ import annotations

from typing import Annotated, Literal, Union

from pydantic import Field

from isoloss.config.base import Part, Positive


class Linear(Part):
    """Logits W h, W of V x M; ``tied`` shares W with the input embedding."""

    kind: Literal["linear"] = "linear"
    tied: bool = False

    def check(self, width: int) -> None:
        """Raise ValueError when the head cannot stand on a model of this width."""

    def parameters(self, vocab_size: int, width: int) -> int:
        """Parameters that the head adds to the model."""
        return 0 if self.tied else vocab_size * width


class LowRank(Part):
    """Logits A B h, A of V x D and B of D x M: a head of rank D."""

    kind: Literal["low_rank"] = "low_rank"
    rank: Positive

    def check(self, width: int) -> None:
        """Raise ValueError when the rank exceeds the model's width."""
        if self.rank > width:
            raise ValueError(f"head.rank must be at most model.width = {width}, not {self.rank}")

    def parameters(self, vocab_size: int, width: int) -> int:
        """Parameters that the head adds to the model."""
        return self.rank * (vocab_size + width)


Head = Annotated[Union[Linear, LowRank], Field(discriminator="kind")]
