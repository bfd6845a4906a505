"""A control: the linear head, of which W learns only what its own column space carries of the logits' gradient."""

# N tokens, V vocabulary, M width, R singular values above the threshold, n rows of a block

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isoloss.config.heads import Linear, ProjectedUpdate
from isoloss.config.parts import Decoder
from isoloss.model.heads.linear import LinearHead
from isoloss.model.loss import linear_cross_entropy

BLOCK_ROWS = 2**14
"""Rows of W that are held in float64 at once."""


class ProjectedUpdateHead(LinearHead):
    """Logits W h and the gradient sent to h are exact; the gradient by W is projected onto col(W) (Murugan 2026).

    Gradient descent would send only that part of the logits' gradient to h, so this trains W on what is not lost on
    the way. ``token_loss`` has the exact gradient; only ``training_loss`` projects it. The projection is linear, so
    that workers may average what each has projected.
    """

    def __init__(self, config: ProjectedUpdate, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__(Linear(), vocab_size, model, embedding)

    def training_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        return linear_cross_entropy(hidden_NM, _ProjectedGradient.apply(self.weight_VM), targets_N)


class _ProjectedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VM: Tensor) -> Tensor:
        ctx.save_for_backward(weight_VM)
        return weight_VM.view_as(weight_VM)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        (weight_VM,) = ctx.saved_tensors
        return projected(outer[0], weight_VM)


def projected(gradient_VM: Tensor, weight_VM: Tensor) -> Tensor:
    """Return W (WᵀW)⁺ Wᵀ G, the part of G's columns in the column space of W.

    WᵀW and WᵀG are accumulated in float64. Directions of which W has a singular value below max(sqrt(M eps), 2^-22)
    of its largest, eps that of float64, are none of its column space: float32 weights cannot tell them from rounding.
    """
    blocks = list(zip(weight_VM.split(BLOCK_ROWS), gradient_VM.split(BLOCK_ROWS), strict=True))
    gram_MM = sum(weight_nM.double().T @ weight_nM.double() for weight_nM, _ in blocks)
    inner_MM = sum(weight_nM.double().T @ gradient_nM.double() for weight_nM, gradient_nM in blocks)
    # eigh raises on what is not finite, and W carries it into the result.
    square_M, vectors_MM = torch.linalg.eigh(gram_MM.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    threshold = max((len(square_M) * torch.finfo(torch.float64).eps) ** 0.5, 2.0**-22)
    inverse_M = square_M.reciprocal().where(square_M > threshold**2 * square_M[-1], 0.0)
    factor_MM = (vectors_MM * inverse_M) @ (vectors_MM.T @ inner_MM)
    return torch.cat([(weight_nM.double() @ factor_MM).to(gradient_VM.dtype) for weight_nM, _ in blocks])
