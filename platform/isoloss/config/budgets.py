"""Budgets, as declarations: how much a trial trains, each saying its unit.

Equal sequences, equal tokens, equal bytes, equal passes and equal floating-point operations are different studies: a
token of a larger vocabulary holds more text, and its logits cost more.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Union

from pydantic import Field, model_validator

from isoloss.config.base import Part, Positive
from isoloss.config.tasks import Task

Amount = Annotated[float, Field(gt=0)]


class Steps(Part):
    """So many updates of so many sequences, whatever the task: equal sequences in every cell."""

    kind: Literal["steps"] = "steps"
    steps: Positive
    batch_size: Positive

    def __init__(self, steps: int | None = None, /, **fields: Any) -> None:
        super().__init__(**_first("steps", steps), **fields)

    def resolve(self, task: Task, flops_per_token: float) -> tuple[int, int]:
        """Return (updates, sequences per update)."""
        return self.steps, self.batch_size


class Coverage(Part):
    """As many sequences as give every symbol ``draws_per_symbol`` independent draws on average.

    Exactly one of ``steps`` and ``batch_size`` is given; the other follows from V, rounded up. Which of them grows
    with V is a question of its own, since symbols that share a step share an update.
    """

    kind: Literal["coverage"] = "coverage"
    draws_per_symbol: Annotated[float, Field(gt=0)]
    steps: Positive | None = None
    batch_size: Positive | None = None

    def __init__(self, draws_per_symbol: float | None = None, /, **fields: Any) -> None:
        super().__init__(**_first("draws_per_symbol", draws_per_symbol), **fields)

    @model_validator(mode="after")
    def _one_grows(self) -> Coverage:
        if (self.steps is None) == (self.batch_size is None):
            raise ValueError(
                "Coverage takes exactly one of steps and batch_size; the other follows from the vocabulary"
            )
        return self

    def resolve(self, task: Task, flops_per_token: float) -> tuple[int, int]:
        """Return (updates, sequences per update)."""
        sequences = self.draws_per_symbol * task.vocab_size / task.draws_per_sequence
        if self.steps is not None:
            return self.steps, math.ceil(sequences / self.steps - 1e-9)
        assert self.batch_size is not None
        return math.ceil(sequences / self.batch_size - 1e-9), self.batch_size


class Tokens(Part):
    """So many scored tokens, rounded up to whole updates."""

    kind: Literal["tokens"] = "tokens"
    tokens: Amount
    batch_size: Positive

    def __init__(self, tokens: float | None = None, /, **fields: Any) -> None:
        super().__init__(**_first("tokens", tokens), **fields)

    def resolve(self, task: Task, flops_per_token: float) -> tuple[int, int]:
        """Return (updates, sequences per update)."""
        return _updates(self.tokens, task, self.batch_size), self.batch_size


class Bytes(Part):
    """As many tokens as so many bytes of UTF-8 text have on average over the training documents: equal text."""

    kind: Literal["bytes"] = "bytes"
    bytes: Amount
    batch_size: Positive

    def __init__(self, bytes: float | None = None, /, **fields: Any) -> None:
        super().__init__(**_first("bytes", bytes), **fields)

    def resolve(self, task: Task, flops_per_token: float) -> tuple[int, int]:
        """Return (updates, sequences per update); raises ValueError when the task has no text."""
        text = task.training_text("bytes")
        return _updates(self.bytes * text.tokens / text.bytes, task, self.batch_size), self.batch_size


class Passes(Part):
    """So many passes over the training documents; a fraction is a part of one."""

    kind: Literal["passes"] = "passes"
    passes: Amount
    batch_size: Positive

    def __init__(self, passes: float | None = None, /, **fields: Any) -> None:
        super().__init__(**_first("passes", passes), **fields)

    def resolve(self, task: Task, flops_per_token: float) -> tuple[int, int]:
        """Return (updates, sequences per update); raises ValueError when the task has no text."""
        return _updates(self.passes * task.training_text("passes").tokens, task, self.batch_size), self.batch_size


class Flops(Part):
    """As many tokens as so many floating-point operations of training pay for, evaluations apart."""

    kind: Literal["flops"] = "flops"
    flops: Amount
    batch_size: Positive

    def __init__(self, flops: float | None = None, /, **fields: Any) -> None:
        super().__init__(**_first("flops", flops), **fields)

    def resolve(self, task: Task, flops_per_token: float) -> tuple[int, int]:
        """Return (updates, sequences per update)."""
        return _updates(self.flops / flops_per_token, task, self.batch_size), self.batch_size


Budget = Annotated[Union[Steps, Coverage, Tokens, Bytes, Passes, Flops], Field(discriminator="kind")]


def _first(name: str, value: Any) -> dict[str, Any]:
    """Return a budget's first field, which may be given without its name."""
    return {} if value is None else {name: value}


def _updates(tokens: float, task: Task, batch_size: int) -> int:
    return math.ceil(tokens / (batch_size * task.positions) - 1e-9)
