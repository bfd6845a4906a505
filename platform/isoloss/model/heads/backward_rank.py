"""A control: the linear head, of which the backbone receives the gradient at its best rank-r approximation only."""

# N tokens, M width, R rank kept

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isoloss.config.heads import BackwardRank, Linear
from isoloss.config.parts import Decoder
from isoloss.model.heads.linear import LinearHead
from isoloss.model.heads.workers import sum_over_workers


class BackwardRankHead(LinearHead):
    """Logits W h and the update of W are exact; the gradient sent to h has rank r (Murugan 2026).

    The gradient by h of all tokens of the batch, over all workers, is truncated to its r largest singular values and
    rescaled to its exact Frobenius norm. ``token_loss``, of which the tokens need not be a whole batch, has the
    exact gradient; only ``training_loss`` truncates it.
    """

    def __init__(self, config: BackwardRank, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__(Linear(), vocab_size, model, embedding)
        self.rank = config.rank

    def training_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        truncated_NM: Tensor = _TruncatedGradient.apply(hidden_NM, self.rank)
        return super().training_loss(truncated_NM, targets_N)


class _TruncatedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_NM: Tensor, rank: int) -> Tensor:
        ctx.rank = rank
        return hidden_NM.view_as(hidden_NM)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        gradient_NM = outer[0]
        if ctx.rank >= gradient_NM.shape[1]:
            return gradient_NM, None
        exact_NM = gradient_NM.double()
        filter_MM = truncation(sum_over_workers(exact_NM.T @ exact_NM), ctx.rank)
        return (exact_NM @ filter_MM).to(gradient_NM.dtype), None


def truncation(gram_MM: Tensor, rank: int) -> Tensor:
    """Return the matrix that takes G, of which GᵀG is given, to its rescaled best approximation of that rank.

    By Eckart and Young that is G U Uᵀ, U the leading eigenvectors of GᵀG. A gradient of zeros stays, and one that is
    not finite becomes NaN.
    """
    # eigh raises on what is not finite; the scale, of the Gram matrix as given, keeps it in the result.
    kept_M, vectors_MM = torch.linalg.eigh(gram_MM.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    vectors_MR = vectors_MM[:, -rank:]
    smallest = torch.finfo(gram_MM.dtype).tiny
    scale = (gram_MM.trace() / kept_M[-rank:].sum().clamp(min=smallest)).sqrt()
    return scale * vectors_MR @ vectors_MR.T
