"""Heads, as declarations: from the hidden state of M numbers to a distribution over V symbols."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Union

from pydantic import Field, field_validator

from isoloss.config.base import Listed, Part, Positive

Share = Annotated[float, Field(gt=0, lt=1)]


class _Head(Part):
    """What every head tells of its size; as written, that of one V x M matrix."""

    @property
    def couples_tokens(self) -> bool:
        """Whether a token's gradient depends on which others are in its batch."""
        return False

    def check(self, vocab_size: int, width: int) -> None:
        """Raise ValueError when the head cannot stand on a model of this vocabulary and width."""

    def parameters(self, vocab_size: int, width: int) -> int:
        """Parameters that the head adds to the model."""
        return vocab_size * width

    def multiplications(self, vocab_size: int, width: int) -> int:
        """Multiplications by a weight in one token's forward pass; pointwise functions count nothing."""
        return self.parameters(vocab_size, width)


class Linear(_Head):
    """Logits c tanh(s W h + b) / c, W of V x M; without ``softcap`` c, ``bias`` b and ``scale`` s just W h.

    ``tied`` shares W with the input embedding; ``softcap`` c bounds logits as c tanh(z / c) (Gemma 2). ``z_loss``
    times (log Z)^2 is added to each token's training loss (Chowdhery et al. 2022, section 5).
    """

    kind: Literal["linear"] = "linear"
    tied: bool = False
    bias: bool = False
    scale: Annotated[float, Field(gt=0)] = 1.0
    softcap: Annotated[float, Field(gt=0)] | None = None
    z_loss: Annotated[float, Field(ge=0)] = 0.0

    def parameters(self, vocab_size: int, width: int) -> int:
        return (0 if self.tied else vocab_size * width) + (vocab_size if self.bias else 0)

    def multiplications(self, vocab_size: int, width: int) -> int:
        return vocab_size * width


class _Ranked(_Head):
    """A head whose last matrix has ``rank`` columns."""

    rank: Positive

    def check(self, vocab_size: int, width: int) -> None:
        if self.rank > width:
            raise ValueError(f"head.rank must be at most model.width = {width}, not {self.rank}")


class LowRank(_Ranked):
    """Logits A B h, A of V x D and B of D x M: a head of rank D."""

    kind: Literal["low_rank"] = "low_rank"

    def parameters(self, vocab_size: int, width: int) -> int:
        return self.rank * (vocab_size + width)


class Mixture(_Head):
    """A mixture of softmaxes (Yang et al. 2018, equation 4): sum over k of pi_k(h) softmax(A tanh(B_k h)).

    A of V x D is shared by the K ``components``; ``rank`` D of None is M. pi is a softmax of K linear functions of h.
    """

    kind: Literal["mixture"] = "mixture"
    components: Annotated[int, Field(ge=2)] = 4
    rank: Positive | None = None

    def parameters(self, vocab_size: int, width: int) -> int:
        rank = self.rank or width
        return vocab_size * rank + self.components * width * (rank + 1)

    def multiplications(self, vocab_size: int, width: int) -> int:
        rank = self.rank or width
        return self.components * (vocab_size * rank + width * (rank + 1))


class Sigsoftmax(_Head):
    """Probabilities proportional to exp(z) sigmoid(z), z = W h (Kanai et al. 2018, equation 16)."""

    kind: Literal["sigsoftmax"] = "sigsoftmax"


class Monotone(_Head):
    """Softmax of f(W h), f one learnt increasing piecewise-linear function (PLIF; Ganea et al. 2019, section 4).

    f has ``pieces`` of equal length between -``reach`` and ``reach``, continues beyond with its outer slopes, and
    starts as the identity.
    """

    kind: Literal["monotone"] = "monotone"
    pieces: Annotated[int, Field(ge=2)] = 64
    reach: Annotated[float, Field(gt=0)] = 16.0

    def parameters(self, vocab_size: int, width: int) -> int:
        return vocab_size * width + self.pieces

    def multiplications(self, vocab_size: int, width: int) -> int:
        return vocab_size * width


class _Sparse(_Head):
    """A head that may give symbols no probability, so that cross-entropy could be infinite.

    Its loss is measured after mixing in a uniform distribution of weight ``smoothing`` (the epsilon-perplexity of
    Martins et al. 2020): a symbol without probability costs ln(V / smoothing), and no loss is below about smoothing.
    """

    smoothing: Share = 1e-4


class Sparsemax(_Sparse):
    """The Euclidean projection of W h onto the simplex, trained by its own loss (Martins & Astudillo 2016)."""

    kind: Literal["sparsemax"] = "sparsemax"


class Entmax(_Sparse):
    """alpha-entmax of W h, trained by its Fenchel-Young loss (Peters et al. 2019; Blondel et al. 2020).

    ``alpha`` of 1 would be softmax and 2 is sparsemax.
    """

    kind: Literal["entmax"] = "entmax"
    alpha: Annotated[float, Field(gt=1, le=2)] = 1.5


class Spherical(_Head):
    """Probabilities proportional to z^2 + ``epsilon``, or of ``taylor`` to 1 + z + z^2 / 2; z = W h.

    The spherical and Taylor softmax of de Brébisson & Vincent (2016). Unlike a softmax, whose p tends to 1 wherever one
    logit is largest, they are bounded by their rank: of V symbols with one context each, the mean of 1 / p is at
    least V / M (``taylor``: V / (M + 1)), so that of SpamLang's loss at V > M about ln(V / M) remains.
    """

    kind: Literal["spherical"] = "spherical"
    taylor: bool = False
    epsilon: Annotated[float, Field(gt=0)] = 1e-2


class Adaptive(_Head):
    """Adaptive softmax (Grave et al. 2017): symbols in clusters by id, the later ones read through fewer dimensions.

    ``cutoffs`` are the shares of the vocabulary at which clusters end: the first is predicted together with one class
    for each later cluster, and cluster i is read through M / ``narrowing``^i dimensions. It saves work where low ids
    are frequent: its multiplications are counted for targets of equal frequency, as SpamLang's are, and a text's cost
    less.
    """

    kind: Literal["adaptive"] = "adaptive"
    cutoffs: Annotated[tuple[Share, ...], Listed, Field(min_length=1)] = (0.125, 0.5)
    narrowing: Annotated[float, Field(ge=1)] = 4.0

    @field_validator("cutoffs")
    @classmethod
    def _increasing(cls, cutoffs: tuple[float, ...]) -> tuple[float, ...]:
        if list(cutoffs) != sorted(set(cutoffs)):
            raise ValueError(f"cutoffs must increase, not {cutoffs}")
        return cutoffs

    def check(self, vocab_size: int, width: int) -> None:
        ends = [0, *self.ends(vocab_size), vocab_size]
        if ends != sorted(set(ends)):
            raise ValueError(f"head.cutoffs leave a cluster of {vocab_size} symbols empty: they end at {ends[1:]}")
        if self.dimensions(width)[-1] < 1:
            raise ValueError(f"head.narrowing = {self.narrowing:g} leaves the last cluster none of {width} dimensions")

    def ends(self, vocab_size: int) -> list[int]:
        """Return the first id after each cluster but the last."""
        return [round(share * vocab_size) for share in self.cutoffs]

    def dimensions(self, width: int) -> list[int]:
        """Return the dimensions through which each cluster after the first is read."""
        return [int(width // self.narrowing ** (i + 1)) for i in range(len(self.cutoffs))]

    def _tails(self, vocab_size: int, width: int) -> list[tuple[int, int]]:
        """Return (symbols, parameters) of each cluster after the first."""
        ends = [*self.ends(vocab_size), vocab_size]
        sizes = [end - start for start, end in itertools.pairwise(ends)]
        return [(size, d * (width + size)) for size, d in zip(sizes, self.dimensions(width), strict=True)]

    def parameters(self, vocab_size: int, width: int) -> int:
        first = (self.ends(vocab_size)[0] + len(self.cutoffs)) * width
        return first + sum(parameters for _, parameters in self._tails(vocab_size, width))

    def multiplications(self, vocab_size: int, width: int) -> int:
        first = (self.ends(vocab_size)[0] + len(self.cutoffs)) * width
        return first + round(sum(size * count / vocab_size for size, count in self._tails(vocab_size, width)))


class Wide(_Head):
    """A wider last projection: logits A u, A of V x kM, u = B h, or ``gated`` u = silu(C h) * (B h) (SwiGLU)."""

    kind: Literal["wide"] = "wide"
    factor: Annotated[float, Field(gt=0)] = 2.0
    gated: bool = False

    def inner(self, width: int) -> int:
        """Return kM, rounded."""
        return max(1, round(self.factor * width))

    def parameters(self, vocab_size: int, width: int) -> int:
        return self.inner(width) * (vocab_size + (2 if self.gated else 1) * width)


class Experts(_Head):
    """Logits sum over the k most likely of E experts of g_e A_e B_e h; g is a softmax of k router values.

    A_e of V x D, B_e of D x M; the router is linear (Shazeer et al. 2017). ``balance`` times
    E sum_e f_e p_e is added to a token's training loss, with f_e the share of routes that go to e and p_e the
    router's probability of e (Fedus et al. 2022, equation 4).
    """

    kind: Literal["experts"] = "experts"
    rank: Positive
    experts: Annotated[int, Field(ge=2)] = 4
    active: Annotated[int, Field(ge=2)] = 2
    balance: Annotated[float, Field(ge=0)] = 0.01

    @property
    def couples_tokens(self) -> bool:
        return self.balance > 0

    def check(self, vocab_size: int, width: int) -> None:
        if self.active > self.experts:
            raise ValueError(f"head.active must be at most head.experts = {self.experts}, not {self.active}")
        if self.rank > width:
            raise ValueError(f"head.rank must be at most model.width = {width}, not {self.rank}")

    def parameters(self, vocab_size: int, width: int) -> int:
        return self.experts * (self.rank * (vocab_size + width) + width)

    def multiplications(self, vocab_size: int, width: int) -> int:
        return self.active * self.rank * (vocab_size + width) + self.experts * width


class BackwardRank(_Ranked):
    """A control: the linear head, but the gradient sent to h is replaced by its best approximation of rank r.

    Logits and the head's own update are exact. The N x M gradient of all the batch's tokens is truncated to its r
    largest singular values and rescaled to its exact root mean square (Murugan 2026).
    """

    kind: Literal["backward_rank"] = "backward_rank"

    @property
    def couples_tokens(self) -> bool:
        return True

    def parameters(self, vocab_size: int, width: int) -> int:
        return vocab_size * width


class ProjectedUpdate(_Head):
    """A control: the linear head, but W is updated with the part of the logits' gradient in col(W) only (Murugan 2026).

    The gradient sent to h is exact.
    """

    kind: Literal["projected_update"] = "projected_update"


class DummyClasses(_Head):
    """A control: the linear head with ``count`` more output classes, which are never a target (Murugan 2026)."""

    kind: Literal["dummy_classes"] = "dummy_classes"
    count: Positive

    def parameters(self, vocab_size: int, width: int) -> int:
        return (vocab_size + self.count) * width


Head = Annotated[
    Union[
        Linear, LowRank, Mixture, Sigsoftmax, Monotone, Sparsemax, Entmax, Spherical, Adaptive, Wide, Experts,
        BackwardRank, ProjectedUpdate, DummyClasses,
    ],
    Field(discriminator="kind"),
]  # fmt: skip
