"""How far the update of a linear head's logits must stay from the ideal one (Godey & Artzi 2026).

The ideal first-order update of the logits is -(P - Ñ); gradient descent on hidden states and W moves them by a matrix
of rank 2D at most. Everything here is of a sample of N scored tokens with logits W h + b, and is computed in float64,
a block of the vocabulary at a time: no N x V matrix is kept, and bfloat16 autocast has no part in it. Weights and
hidden states must be finite.
"""

# N tokens, V vocabulary, D columns of the last matrix, K symbols of one block, C distinct contexts, E = 2D

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from isoloss.tasks.base import UNSCORED

BLOCK_BYTES = 2**24
"""Bytes of logits in one block."""

FLOAT32_NOISE = 4 * 2.0**-24
"""Singular values below this share of the largest may be what rounding to float32 makes of zeros."""


class Update(NamedTuple):
    """The first-order change of a sample's logits by gradient descent.

    ``singular_values`` in falling order, 2D of them; ``rank`` counts those above rounding. ``cosine`` is that with the
    ideal update; with the best step size the share sqrt(1 - cosine²) of its norm remains undone.
    """

    singular_values: Tensor
    rank: int
    cosine: float


@torch.no_grad()
def tail_bound(gram_NN: Tensor, columns: int) -> float:
    """Return the least distance of P - Ñ from any matrix of rank 2D, over ||P - Ñ||_F (Prop. 2.6); D is ``columns``.

    That is sqrt(sum of s_i² over i > 2D) over sqrt(sum of s_i²), s_i the singular values of P - Ñ (Eckart & Young
    1936). ``gram_NN`` is the Gram of P - Y, in which each token has a row of its own; for the paper's P - Ñ, in which
    each distinct context has one, it is ``by_context`` of that. All s_i count, where the paper stops at i = D_u.

    The bound is 0 for N up to 2D, and falls as a sample repeats itself: take N well above 2D, the same in all that is
    compared, and report it. It is nan where P - Ñ is 0. A randomised SVD would put it too high to be a bound.
    """
    energy_N = torch.linalg.eigvalsh(gram_NN).clamp(min=0)  # in rising order
    tail = energy_N[: max(0, len(energy_N) - 2 * columns)].sum()
    return float((tail / energy_N.sum()).sqrt())


@torch.no_grad()
def by_context(gram_NN: Tensor, context_N: Tensor) -> Tensor:
    """Return the C x C Gram of P - Ñ, whose rows are those of P - Y averaged over each context.

    ``context_N`` is from ``contexts.context_ids``. Y averages to Ñ, the sample's distribution of what follows the
    context, which is one-hot where the context is unique. P averages to itself where contexts are whole prefixes.
    """
    member_CN = F.one_hot(context_N).T.to(gram_NN)
    average_CN = member_CN / member_CN.sum(dim=1, keepdim=True)
    return average_CN @ gram_NN @ average_CN.T


@torch.no_grad()
def gram(blocks: Iterable[Tensor]) -> Tensor:
    """Return the N x N Gram, float64, of a matrix that is given as blocks of its columns.

    Of a linear head the blocks are ``gradient_blocks``; of another head P - Y is one block.
    """
    return reduce(torch.add, (block_NK.double() @ block_NK.double().T for block_NK in blocks))


@torch.no_grad()
def first_order_update(input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None) -> Update:
    """Return the change -(G W Wᵀ + H Hᵀ G) of the logits by a step of gradient descent on H = ``input_ND`` and W.

    G = P - Y; the hidden states move freely, each by its own gradient, and at W's learning rate, while a bias stays.
    The change is -X Yᵀ of X = [G W, H] and Y = [W, Gᵀ H], of which only the 2D x 2D Grams are formed. Singular values
    count in the rank above max(sqrt(2D eps), FLOAT32_NOISE) times the largest, eps that of float64.
    Raises ValueError when a target is UNSCORED.
    """
    D = weight_VD.shape[1]
    input_ND = input_ND.double()
    gradient_ND = torch.zeros_like(input_ND)
    right_EE = input_ND.new_zeros(2 * D, 2 * D)
    total = input_ND.new_zeros(())
    blocks = gradient_blocks(input_ND, weight_VD, targets_N, bias_V)
    for block_NK, weight_KD in zip(blocks, weight_VD.split(_block_size(input_ND)), strict=True):
        gradient_ND.addmm_(block_NK, weight_KD.double())
        right_KE = torch.cat([weight_KD.double(), block_NK.T @ input_ND], dim=1)
        right_EE.addmm_(right_KE.T, right_KE)
        total += block_NK.square().sum()
    left_NE = torch.cat([gradient_ND, input_ND], dim=1)
    left_EE = left_NE.T @ left_NE

    with_ideal = left_EE.diagonal()[:D].sum() + right_EE.diagonal()[D:].sum()  # <G, X Yᵀ> = ||G W||² + ||Gᵀ H||²
    cosine = with_ideal / (total * (left_EE * right_EE).sum()).sqrt()
    singular_values = _singular_values_of_product(left_EE, right_EE)
    threshold = max((2 * D * torch.finfo(torch.float64).eps) ** 0.5, FLOAT32_NOISE) * singular_values[0]
    return Update(singular_values, int((singular_values > threshold).sum()), float(cosine))


@torch.no_grad()
def gradient_blocks(
    input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield P - Y, the gradient of each token's cross-entropy by its logits, as N x K blocks of symbols in float64.

    The target's entry is minus the sum of the others, so that it keeps its digits where a token is learnt.
    Raises ValueError when a target is UNSCORED.
    """
    if bool((targets_N == UNSCORED).any()):
        raise ValueError("every token of the sample must be scored")
    target_logit_N = torch.empty_like(targets_N, dtype=torch.float64)
    log_others_N = torch.full_like(target_logit_N, -torch.inf)
    for logits_NK, target in _logit_blocks(input_ND, weight_VD, targets_N, bias_V):
        target_logit_N[target[0]] = logits_NK[target]
        logits_NK[target] = -torch.inf
        log_others_N = torch.logaddexp(log_others_N, logits_NK.logsumexp(dim=1))
    log_z_N = torch.logaddexp(log_others_N, target_logit_N)
    others_N = (log_others_N - log_z_N).exp()
    for logits_NK, target in _logit_blocks(input_ND, weight_VD, targets_N, bias_V):
        block_NK = logits_NK.sub_(log_z_N[:, None]).exp_()
        block_NK[target] = -others_N[target[0]]
        yield block_NK


def _logit_blocks(
    input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None
) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Yield blocks of logits, and the rows and columns of the targets in them."""
    input_ND = input_ND.double()
    size = _block_size(input_ND)
    for first in range(0, len(weight_VD), size):
        logits_NK = input_ND @ weight_VD[first : first + size].double().T
        if bias_V is not None:
            logits_NK += bias_V[first : first + size]
        rows = ((targets_N >= first) & (targets_N < first + size)).nonzero()[:, 0]
        yield logits_NK, (rows, targets_N[rows] - first)


def _block_size(input_ND: Tensor) -> int:
    return max(1, BLOCK_BYTES // (8 * len(input_ND)))


def _singular_values_of_product(left_EE: Tensor, right_EE: Tensor) -> Tensor:
    """Return the singular values of X Yᵀ, in falling order, from the Grams of X and Y."""
    # Columns of X get unit norm, at the expense of Y's: those of G W can be far smaller than those of H.
    norm_E = left_EE.diagonal().sqrt()
    norm_E = norm_E.where(norm_E > 0, 1.0)
    scale_EE = torch.outer(norm_E, norm_E)
    energy_E, vectors_EE = torch.linalg.eigh(left_EE / scale_EE)
    root_EE = vectors_EE * energy_E.clamp(min=0).sqrt()
    product_EE = root_EE.T @ (right_EE * scale_EE) @ root_EE
    return torch.linalg.eigvalsh(product_EE).clamp(min=0).sqrt().flip(0)
