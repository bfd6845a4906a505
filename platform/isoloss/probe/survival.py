"""Gradient survival: how much of the logits' gradient passes back through a head's last matrix (Godey & Artzi 2026).

For logits z = W h and one token's loss, g = dL/dz = p - e_y reaches h as g_h = W^T g. Of its squared norm |g|^2 the
part in the column space of W survives, g_h^T (W^T W)^+ g_h, and all else is lost. That part is found from g_h and the
D x D Gram matrix of W alone, so nothing here is as large as N x V.
"""

# N tokens, V vocabulary, M width, D columns of a matrix, R its numerical rank, Q quantiles

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK_BYTES = 2**24
"""Bytes of the rows that are in float64 at one time."""


@dataclass(frozen=True)
class Factor:
    """The singular values of a matrix W_VD, descending, and its right singular vectors; those of no size are left out.

    Both are float64. ``rows`` is V.
    """

    singular_R: Tensor
    vectors_DR: Tensor
    rows: int

    @property
    def rank(self) -> int:
        return len(self.singular_R)

    @property
    def gram_DD(self) -> Tensor:
        """W^T W."""
        scaled_DR = self.vectors_DR * self.singular_R
        return scaled_DR @ scaled_DR.T


@dataclass(frozen=True)
class Survival:
    """Of each token's logit gradient, the squared norm that survives and all of it.

    Both are 0 for a token without a target. ``rank`` is the dimension of what survives, ``classes`` that of logits.
    """

    kept_N: Tensor
    total_N: Tensor
    rank: int
    classes: int

    @property
    def share(self) -> float:
        """What survives of all tokens' squared norm; NaN without gradient.

        It is never clipped: above 1 by more than rounding, the gradients and the matrix do not belong together.
        """
        return float(self.kept_N.double().sum() / self.total_N.double().sum())

    @property
    def suppressed(self) -> float:
        """|G - PG| / |G|, Frobenius norms over tokens (0.95 to 0.99 in the paper); 0 where rounding has share > 1."""
        return float(_suppressed(torch.tensor(self.share, dtype=torch.float64)))

    @property
    def cosine(self) -> float:
        """The cosine of PG and G, over all tokens (0.1 to 0.2 in the paper)."""
        return math.sqrt(self.share)

    @property
    def gain(self) -> float:
        """The share over rank / classes, which a random subspace of that rank would keep; NaN at rank 0."""
        return self.share * self.classes / self.rank if self.rank else math.nan

    @property
    def suppressed_N(self) -> Tensor:
        """The same of each token, float64; NaN where the gradient is 0 or too small for its squared norm to be told."""
        measurable_N = self.total_N >= torch.finfo(self.total_N.dtype).tiny
        share_N = (self.kept_N.double() / self.total_N.double()).where(measurable_N, math.nan)
        return _suppressed(share_N)

    @property
    def mean(self) -> float:
        """The mean of ``suppressed_N`` over the tokens that have one."""
        return float(self.suppressed_N.nanmean())

    def quantiles(self, levels_Q: Sequence[float]) -> list[float]:
        """Return those quantiles of ``suppressed_N`` over the tokens that have one; NaN if none has."""
        values_N = self.suppressed_N[~self.suppressed_N.isnan()].cpu().numpy()
        found_Q = np.quantile(values_N, levels_Q) if len(values_N) else np.full(len(levels_Q), np.nan)
        return [float(value) for value in found_Q]

    def by_group(self, group_N: Tensor) -> dict[int, Survival]:
        """Return the survival in each group of tokens, such as those whose target is equally frequent."""
        groups = group_N.unique().tolist()
        parts = {group: (self.kept_N[group_N == group], self.total_N[group_N == group]) for group in groups}
        return {group: Survival(kept_N, total_N, self.rank, self.classes) for group, (kept_N, total_N) in parts.items()}


def _suppressed(share: Tensor) -> Tensor:
    return (1 - share).clamp(min=0).sqrt()  # unlike Python's max, clamp lets NaN through


@torch.no_grad()
def gram(matrix_ND: Tensor, centred: bool = False) -> Tensor:
    """Return matrix^T matrix in float64, of ``centred`` after subtracting the mean row.

    It is summed over blocks of rows, so that the matrix itself may be large and of fewer digits.
    """
    columns = matrix_ND.shape[1]
    shift_D = matrix_ND.new_zeros(columns, dtype=torch.float64)
    if centred:
        for block_ND in blocks(matrix_ND):
            shift_D += block_ND.sum(0) / len(matrix_ND)
    gram_DD = matrix_ND.new_zeros(columns, columns, dtype=torch.float64)
    for block_ND in blocks(matrix_ND):
        block_ND = block_ND - shift_D if centred else block_ND
        gram_DD.addmm_(block_ND.T, block_ND)
    return gram_DD


def blocks(matrix_ND: Tensor) -> Iterator[Tensor]:
    """Yield the rows in float64, a block at a time."""
    rows = max(1, BLOCK_BYTES // (8 * matrix_ND.shape[1]))
    return (block_ND.double() for block_ND in matrix_ND.split(rows))


def factor(weight_VD: Tensor, centred: bool = False) -> Factor:
    """Return the singular values and vectors of a matrix, of ``centred`` after subtracting its mean row.

    The softmax ignores a constant shift of its logits, and p - e_y sums to 0. So the centred matrix is the exact one,
    and comparable between heads; the paper's is W itself, which may keep one dimension more. Raises ValueError when a
    weight is not finite.
    """
    return decompose(gram(weight_VD, centred), len(weight_VD), weight_VD.dtype)


@torch.no_grad()
def decompose(gram_DD: Tensor, rows: int, dtype: torch.dtype = torch.float32) -> Factor:
    """Return the factor of a matrix of these rows, stored as ``dtype``, from its float64 Gram matrix.

    A singular value counts if it is above ``resolution`` of the largest.
    """
    if not gram_DD.isfinite().all():
        raise ValueError("a matrix that is not finite has no singular values")
    squared_D, vectors_DD = torch.linalg.eigh(gram_DD)
    singular_D = squared_D.clamp(min=0).sqrt()
    kept_D = singular_D > resolution(len(gram_DD), dtype) * singular_D[-1]
    return Factor(singular_D[kept_D].flip(0), vectors_DD[:, kept_D].flip(1), rows)


def resolution(columns: int, dtype: torch.dtype) -> float:
    """Return the share of the largest singular value below which one cannot be told from 0.

    The float64 Gram matrix is known to columns x 2^-52 of its norm, hence a singular value to the root of that.
    Rounding to float32 makes any matrix one of full rank, with singular values of about 2^-24 of the largest; four
    times that are not counted. Weights of fewer digits count as exact, though their rounding, too, hides a low rank.
    """
    stored = min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    return max(math.sqrt(columns * torch.finfo(torch.float64).eps), 2 * stored)


@torch.no_grad()
def kept(gradient_ND: Tensor, factor: Factor) -> Tensor:
    """Return kept_N = g^T (W^T W)^+ g in float64, g the gradient of a token's own loss by the matrix's input.

    Keep g in float32: an error of it along singular value s weighs (largest / s)^2. Against an SVD in float64, the
    sum over 128 tokens was right to 1e-8 / 1e-7 / 5e-7 / 5e-6 at condition 1 / 1e2 / 1e3 / 1e4 for g computed in
    float32 (single tokens to 2e-7 / 3e-6 / 3e-5 / 2e-4), to 1e-6 at 1e4 for the exact g rounded to float32, and to 4e-9
    for g in float64. For g in bfloat16 it was wrong by 3 % at 1e3 and by more than itself at 1e4.
    """
    return torch.cat([_coordinates(block_ND, factor).square().sum(-1) for block_ND in blocks(gradient_ND)])


def _coordinates(block_ND: Tensor, factor: Factor) -> Tensor:
    """Return the logit gradients' coordinates on the left singular vectors; N x R."""
    return block_ND @ factor.vectors_DR / factor.singular_R


@torch.no_grad()
def backprop_cosine(gradient_ND: Tensor, total_N: Tensor, gram_DD: Tensor) -> float:
    """Return cos(G, G W W^T): how well a gradient step on the hidden states alone moves the logits where it should.

    ``gradient_ND`` are rows of G W, ``total_N`` squared norms of rows of G, ``gram_DD`` is W^T W.
    """
    moved_DD = gram(gradient_ND)
    return float(moved_DD.trace() / (total_N.double().sum() * (moved_DD * gram_DD).sum()).sqrt())
