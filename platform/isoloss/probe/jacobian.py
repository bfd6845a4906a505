"""Gradient survival through a head that is no single matrix, from the Jacobian of its log-probabilities at each token.

A token's log-probabilities are the logits of any head, up to a shift that the softmax ignores. With J their Jacobian by
h, C = I - 11^T / V, g = p - e_y and g_h = J^T g, the part of g that survives has the squared norm
g_h^T (J^T C J)^+ g_h: it is g projected onto the columns of C J. It does not depend on how logits are normalised.

No J is built. The projection solves the least squares min |g - C J x|, for all tokens at once, by conjugate gradients
(CGLS; Hestenes & Stiefel 1952), of which each step multiplies once by J and once by J^T.
"""

# N tokens, V classes, M width, D columns of the last matrix

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isoloss.model.heads.base import Head, at_least_float32
from isoloss.model.loss import chunk_tokens
from isoloss.probe.survival import Survival, gram, resolution
from isoloss.tasks.base import UNSCORED

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FunctionSurvival(Survival):
    """Survival, with the steps that each token took, and whether they sufficed; where not, kept is too low."""

    iterations_N: Tensor
    converged_N: Tensor


@torch.no_grad()
def function_survival(
    head: Head, hidden_NM: Tensor, targets_N: Tensor, iterations: int = 200, tolerance: float = 1e-4
) -> FunctionSurvival:
    """Return how much of each token's logit gradient survives the head, whatever the head's form.

    ``kept_N`` only grows from step to step, so it is a lower bound. A token's steps end once the last third of them
    added less than ``tolerance`` of it and the next would; M steps leave nothing to add. ``rank`` is the Jacobian's as
    far as a last matrix tells it, and otherwise the most it can be, min(M, V - 1). It works in the digits of the head,
    at least float32, also under autocast; memory is some ten N x V matrices of a chunk of tokens.

    Measured in float32 against float64, the sum over tokens: a linear head of condition 1e4 is right to 4e-6, other
    heads to about the tolerance, but of large logits a spherical one to 2e-3 and an entmax one to 2e-2. Heads with a
    last matrix take 1 to 8 steps, sparse ones and those without it up to M.
    """
    hidden_NM = at_least_float32(hidden_NM)
    kept_N, total_N = hidden_NM.new_zeros(2, len(hidden_NM), dtype=torch.float64)
    iterations_N = torch.zeros_like(targets_N)
    converged_N = torch.ones_like(targets_N, dtype=torch.bool)
    scored_N = (targets_N != UNSCORED).nonzero().flatten()
    with torch.autocast(hidden_NM.device.type, enabled=False):
        scale_NMM, rank = _preconditioner(head, hidden_NM)
        classes = head.log_probabilities(hidden_NM[:1]).shape[-1]  # a head may have some that are no symbols
        for chunk_N in scored_N.split(chunk_tokens(classes, 4, hidden_NM.device.type)):
            problem = _Problem(head, hidden_NM[chunk_N], scale_NMM[chunk_N] if len(scale_NMM) > 1 else scale_NMM)
            unit_NV, total_N[chunk_N] = _logit_gradients(problem.log_probability_NV, targets_N[chunk_N])
            share_N, iterations_N[chunk_N], converged_N[chunk_N] = _project(problem, unit_NV, iterations, tolerance)
            kept_N[chunk_N] = share_N * total_N[chunk_N]
    return FunctionSurvival(kept_N, total_N, rank, classes, iterations_N, converged_N)


def linearised(function: Map, hidden_NM: Tensor) -> tuple[Tensor, Map, Map]:
    """Return a function's values and the products with its Jacobian at each token, x -> J x and r -> J^T r.

    J x comes from differentiating J^T r, which is linear in r: not every function has a forward derivative in torch.
    """
    with torch.enable_grad():
        leaf_NM = hidden_NM.detach().requires_grad_()
        value_NV = function(leaf_NM)
        cotangent_NV = torch.zeros_like(value_NV, requires_grad=True)
        (pulled_NM,) = torch.autograd.grad(value_NV, leaf_NM, cotangent_NV, create_graph=True)

    def push(x_NM: Tensor) -> Tensor:
        return torch.autograd.grad(pulled_NM, cotangent_NV, x_NM, retain_graph=True)[0]

    def pull(r_NV: Tensor) -> Tensor:
        return torch.autograd.grad(value_NV, leaf_NM, r_NV, retain_graph=True)[0]

    return value_NV.detach(), push, pull


class _Problem:
    """C J S at each token, S the preconditioner."""

    def __init__(self, head: Head, hidden_NM: Tensor, scale_NMM: Tensor) -> None:
        self.log_probability_NV, self._push, self._pull = linearised(head.log_probabilities, hidden_NM)
        self.scale_NMM = scale_NMM

    def push(self, x_NM: Tensor) -> Tensor:
        return _centred(self._push((self.scale_NMM @ x_NM[:, :, None])[:, :, 0]))

    def pull(self, r_NV: Tensor) -> Tensor:
        return (self.scale_NMM.mT @ self._pull(_centred(r_NV))[:, :, None])[:, :, 0]


class _Projected(NamedTuple):
    squared_norm_N: Tensor
    iterations_N: Tensor
    converged_N: Tensor


def _project(problem: _Problem, unit_NV: Tensor, iterations: int, tolerance: float) -> _Projected:
    """Return the squared norms of unit rows' projections onto the problem's columns.

    A step's gain is computed as what it takes off the residual: it cannot be negative, nor the sum exceed 1, however
    rounding bends the steps. Gradients are kept orthogonal to all before them, without which float32 takes several
    times M steps. The error left is estimated as the larger of what the next step would gain and what the last third of
    them did (Strakoš & Tichý 2002); shares around the square of the rounding unit are noise.
    """
    noise, width = torch.finfo(unit_NV.dtype).eps ** 2, problem.scale_NMM.shape[-1]
    residual_NV, gradient_NM = unit_NV, problem.pull(unit_NV)
    direction_NM, slope_N, seen = gradient_NM, _square(gradient_NM), [_unit(gradient_NM)]
    share_N, active_N, gains = torch.zeros_like(slope_N), slope_N > 0, list[Tensor]()
    iterations_N = torch.zeros_like(slope_N, dtype=torch.int64)
    while active_N.any() and len(gains) < min(iterations, width):
        moved_NV = problem.push(direction_NM)
        along_N, moved_N = (residual_NV.double() * moved_NV).sum(-1), _square(moved_NV)
        step_N = (along_N / moved_N).where(active_N & (moved_N > 0), 0.0)
        residual_NV = residual_NV - step_N[:, None].to(residual_NV.dtype) * moved_NV
        gains.append(step_N * along_N)
        share_N = share_N + gains[-1]
        iterations_N += active_N

        gradient_NM = problem.pull(residual_NV)
        for unit_NM in seen:
            gradient_NM = gradient_NM - (gradient_NM * unit_NM).sum(-1, keepdim=True) * unit_NM
        seen.append(_unit(gradient_NM))
        last_slope_N, slope_N = slope_N, _square(gradient_NM)
        last_third_N = sum(gains[len(gains) - len(gains) // 3 :], torch.zeros_like(share_N))
        active_N = active_N & (torch.maximum(step_N * slope_N, last_third_N) > tolerance * share_N + noise)
        turn_N1 = (slope_N / last_slope_N).where(active_N, 0.0)[:, None]
        direction_NM = gradient_NM + turn_N1.to(gradient_NM.dtype) * direction_NM
    return _Projected(share_N, iterations_N, ~active_N | (len(gains) == width))


def _square(rows: Tensor) -> Tensor:
    return rows.double().square().sum(-1)


def _unit(rows: Tensor) -> Tensor:
    norm_N1 = _square(rows).sqrt()[:, None]
    return (rows / norm_N1).where(norm_N1 > 0, 0.0).to(rows.dtype)


def _centred(rows_NV: Tensor) -> Tensor:
    return rows_NV - rows_NV.mean(-1, keepdim=True)


def _logit_gradients(log_probability_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of p - y at norm 1, and their squared norms in float64.

    1 - p_y is the sum over the other symbols: of a learnt token, p_y has no digits left to tell it.
    """
    target_N1 = targets_N[:, None]
    gradient_NV = log_probability_NV.double().exp().scatter(-1, target_N1, 0.0)
    gradient_NV.scatter_(-1, target_N1, -gradient_NV.sum(-1, keepdim=True))
    return _unit(gradient_NV).to(log_probability_NV.dtype), _square(gradient_NV)


def _preconditioner(head: Head, hidden_NM: Tensor) -> tuple[Tensor, int]:
    """Return S_NMM, or one for all tokens, that makes the columns of C J S near orthonormal; and the rank of J.

    It is exact where logits are the last matrix times its input, and near where they are a pointwise function of that.
    Directions of no size stay in, at the scale of the largest. A head without a last matrix goes without.
    """
    weight_VD, width = head.last_matrix(), hidden_NM.shape[-1]
    if weight_VD is None:
        return torch.eye(width)[None].to(hidden_NM), min(width, head.vocab_size - 1)
    input_NDM = _input_jacobians(head, hidden_NM).double()
    gram_NMM = input_NDM.mT @ gram(weight_VD, centred=True) @ input_NDM
    # What is not finite shows in the token's gradient; eigh would refuse it for all tokens.
    squared_NM, vectors_NMM = torch.linalg.eigh(gram_NMM.nan_to_num(0.0, 0.0, 0.0))
    singular_NM = squared_NM.clamp(min=0).sqrt()
    largest_N1 = singular_NM[:, -1:]
    counted_NM = singular_NM > resolution(width, weight_VD.dtype) * largest_N1
    scale_NM = singular_NM.where(counted_NM, largest_N1.where(largest_N1 > 0, 1.0))
    return (vectors_NMM / scale_NM[:, None]).to(hidden_NM.dtype), int(counted_NM.sum(-1).max())


def _input_jacobians(head: Head, hidden_NM: Tensor) -> Tensor:
    """Return the Jacobian of the last matrix's input at each token, N x D x M; 1 x D x M if it is the same at all."""
    jacobians = torch.func.vmap(torch.func.jacrev(lambda hidden_M: head.last_input(hidden_M[None])[0]))
    at_two_2DM = jacobians(torch.tensor([[0.0], [1.0]]).to(hidden_NM).expand(2, hidden_NM.shape[-1]))
    return at_two_2DM[:1] if torch.equal(at_two_2DM[0], at_two_2DM[1]) else jacobians(hidden_NM)
