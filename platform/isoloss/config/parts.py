"""The model, optimizer, evaluation and stopping rule of a trial, as declarations.

Declarations import no torch, so that a study can be written, checked and planned anywhere; the packages ``tasks``,
``model`` and ``train`` build what is declared here.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from isoloss.config.base import Part, Positive

Fraction = Annotated[float, Field(ge=0, le=1)]


class Decoder(Part):
    """A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    ``kv_heads`` of None means one for each attention head. The MLP's width is ``mlp_ratio * width`` rounded up to a
    multiple of 8.
    """

    kind: Literal["decoder"] = "decoder"
    width: Positive
    depth: Positive
    attention_heads: Positive = 4
    kv_heads: Positive | None = None
    mlp_ratio: Annotated[float, Field(gt=0)] = 8 / 3
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    initial_std: Annotated[float, Field(gt=0, le=1)] = 0.02

    @model_validator(mode="after")
    def _shapes(self) -> Decoder:
        if self.width % (2 * self.attention_heads):
            raise ValueError(
                f"width must be a multiple of 2 * attention_heads = {2 * self.attention_heads} "
                f"(rotary positions pair the dimensions of a head), not {self.width}"
            )
        if self.attention_heads % self.key_value_heads:
            raise ValueError(f"kv_heads must divide attention_heads = {self.attention_heads}, not {self.kv_heads}")
        return self

    @property
    def key_value_heads(self) -> int:
        return self.attention_heads if self.kv_heads is None else self.kv_heads

    @property
    def mlp_width(self) -> int:
        return 8 * math.ceil(self.mlp_ratio * self.width / 8 - 1e-9)

    @property
    def parameters(self) -> int:
        """Parameters of the backbone: blocks and final norm, without embedding and head."""
        kv_width = self.width // self.attention_heads * self.key_value_heads
        attention = 2 * self.width * self.width + 2 * self.width * kv_width
        mlp = 3 * self.width * self.mlp_width
        return self.depth * (attention + mlp + 2 * self.width) + self.width

    @classmethod
    def smollm2_135m(cls) -> Decoder:
        """The backbone of SmolLM2-135M, on which Godey & Artzi (2026) train SpamLang: 106M parameters."""
        return cls(width=576, depth=30, attention_heads=9, kv_heads=3, rope_theta=100_000.0)

    @classmethod
    def llama3_6_layers(cls) -> Decoder:
        """Six layers of Llama-3-8B's shape at width 4,096, Godey & Artzi's (2026) FineWeb-Edu model."""
        return cls(width=4096, depth=6, attention_heads=32, kv_heads=8, mlp_ratio=3.5, rope_theta=500_000.0)


class WarmupStableDecay(Part):
    """Learning rate over a trial: linear warm-up, constant, linear decay; each a fraction of all steps."""

    warmup: Fraction = 0.1
    decay: Fraction = 0.2
    final: Fraction = 0.0

    @model_validator(mode="after")
    def _fits(self) -> WarmupStableDecay:
        if self.warmup + self.decay > 1:
            raise ValueError(f"warmup + decay must be at most 1, not {self.warmup + self.decay:g}")
        return self

    def factor(self, step: int, steps: int) -> float:
        """Return the multiple of the learning rate for update ``step`` of ``steps``, counted from 0."""
        warmup, decay = round(self.warmup * steps), round(self.decay * steps)
        if step < warmup:
            return (step + 1) / warmup
        left = steps - step
        if left <= decay:
            return self.final + (1 - self.final) * left / (decay + 1)
        return 1.0


class AdamW(Part):
    """AdamW with gradient clipping by global norm; weight decay acts on matrices only."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)]
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    schedule: WarmupStableDecay = WarmupStableDecay()


class Probes(Part):
    """What is measured of a model, beside its loss, at every evaluation; it changes nothing that is trained.

    The same held-out ``tokens`` are looked at each time, in float32. ``survival``: how much of the logits' gradient
    passes the head. ``spectra``: ranks of the head and of the hidden states. ``stability``: largest attention logit,
    mean log Z, root mean square of gradients and updates. ``updates``: what a step of gradient descent can do to the
    logits, and what it would have to do (Godey & Artzi 2026); it costs N^2 V.
    """

    tokens: Annotated[int, Field(ge=16)] = 256
    survival: bool = True
    spectra: bool = True
    stability: bool = True
    updates: bool = False


class Evaluation(Part):
    """Held-out loss at ``points`` log-spaced steps, the first and last among them.

    It is measured on so many fixed ``sequences``, of a text on so many documents; so is what ``probes`` ask for.
    """

    sequences: Annotated[int, Field(ge=2)] = 256
    points: Annotated[int, Field(ge=4, le=200)] = 24
    probes: Probes | None = None

    def steps(self, total: int) -> list[int]:
        """Return the steps after which the loss is measured: 0, then log-spaced, then ``total``."""
        if total <= self.points - 1:
            return list(range(total + 1))
        marks = {round(total ** (i / (self.points - 2))) for i in range(self.points - 1)}
        return sorted({0, total} | marks)


class Stop(Part):
    """When a trial ends before its budget, by absolute rules only: a rule relative to other trials would bias maps.

    A non-finite loss, gradient or weight always ends it. So does a held-out loss that has stayed above
    ``above_initial`` times the initial loss for ``for_share`` of the budget's steps, after warm-up; None lets such
    trials go on. Merely exceeding the initial loss ends nothing: a batch pushes down every symbol that it lacks, so
    trials that converge rise at first, the more the larger V and the learning rate are.
    """

    above_initial: Annotated[float, Field(gt=1)] | None = 2.0
    for_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
