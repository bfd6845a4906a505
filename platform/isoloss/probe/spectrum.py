"""Spectra of matrices: how many directions the rows of a head or of hidden states use, and how alike the rows are."""

# N rows, as of tokens; V vocabulary, M width, D columns, R numerical rank

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from isoloss.model.loss import chunk_tokens
from isoloss.probe.survival import blocks, decompose, factor, gram


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a matrix, descending, in float64; those that rounding may have made are left out.

    All figures but ``rank`` are NaN when none is left.
    """

    singular_R: Tensor

    @property
    def rank(self) -> int:
        """How many singular values can be told from 0."""
        return len(self.singular_R)

    @property
    def entropy(self) -> float:
        """The entropy of the singular values, normalised to sum 1, in nats: at most ln R, of equal ones."""
        share_R = self.singular_R / self.singular_R.sum()
        return float(-torch.xlogy(share_R, share_R).sum()) if self.rank else math.nan

    @property
    def effective_rank(self) -> float:
        """exp of the entropy (Roy & Vetterli 2007), from 1 to R."""
        return math.exp(self.entropy)

    @property
    def condition(self) -> float:
        """The largest singular value over the smallest that is left."""
        return float(self.singular_R[0] / self.singular_R[-1]) if self.rank else math.nan

    @property
    def top_share(self) -> float:
        """The largest singular value's share of their sum, not of the sum of squares."""
        return float(self.singular_R[0] / self.singular_R.sum()) if self.rank else math.nan


def spectrum(matrix_ND: Tensor, centred: bool = False) -> Spectrum:
    """Return the spectrum of a matrix, of ``centred`` after subtracting its mean row.

    It comes from the float64 Gram matrix of the smaller side, N x N or D x D: so also of N x V log-probabilities.
    Raises ValueError when an entry is not finite.
    """
    if len(matrix_ND) >= matrix_ND.shape[1]:
        return Spectrum(factor(matrix_ND, centred).singular_R)
    gram_NN = gram(matrix_ND.T)
    if centred:
        gram_NN = gram_NN - gram_NN.mean(0) - gram_NN.mean(1, keepdim=True) + gram_NN.mean()
    return Spectrum(decompose(gram_NN, len(matrix_ND), matrix_ND.dtype).singular_R)


@torch.no_grad()
def anisotropy(hidden_NM: Tensor) -> float:
    """Return the mean cosine of two different rows, (|sum h/|h||^2 - N) / (N (N - 1)) (Ethayarajh 2019).

    NaN if a row is 0. Raises ValueError for fewer than two rows.
    """
    count = len(hidden_NM)
    if count < 2:
        raise ValueError(f"anisotropy compares rows, of which there must be two or more, not {count}")
    return mean_cosine(direction_sum(hidden_NM), count)


def direction_sum(hidden_NM: Tensor) -> Tensor:
    """Return the sum of the rows, each at norm 1, in float64."""
    sum_M = hidden_NM.new_zeros(hidden_NM.shape[1], dtype=torch.float64)
    for block_NM in blocks(hidden_NM):
        sum_M += (block_NM / torch.linalg.vector_norm(block_NM, dim=-1, keepdim=True)).sum(0)
    return sum_M


def mean_cosine(direction_sum_M: Tensor, count: int) -> float:
    """Return the anisotropy of ``count`` rows, two or more, from the sum of their directions."""
    return float((direction_sum_M.square().sum() - count) / (count * (count - 1)))


@torch.no_grad()
def log_probability_rank(hidden_ND: Tensor, weight_VD: Tensor) -> int:
    """Return the rank of the N x V log-probabilities of a linear head, at most D + 1 (Yang et al. 2018).

    They are H C W + m 1^T, with C W the centred rows of W and m each token's mean log-probability. These parts are
    orthogonal in the space of logits, so their rank is that of the N x (R + 1) matrix [H U, m], U the directions of
    C W, both parts at norm 1. No N x V matrix is kept. Raises ValueError when an entry is not finite.
    """
    used_NR = hidden_ND.double() @ factor(weight_VD, centred=True).vectors_DR
    size = chunk_tokens(len(weight_VD), 4, hidden_ND.device.type)
    mean_N1 = torch.cat([_mean_log_probability(part_ND, weight_VD) for part_ND in hidden_ND.split(size)])
    parts = [part / torch.linalg.matrix_norm(part) for part in (used_NR, mean_N1) if part.any()]
    joint_NR = torch.cat(parts, dim=1)
    return decompose(gram(joint_NR), len(joint_NR), hidden_ND.dtype).rank


def _mean_log_probability(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
    return F.log_softmax(F.linear(hidden_ND.to(weight_VD.dtype), weight_VD).float(), dim=-1).mean(
        -1, keepdim=True, dtype=torch.float64
    )
