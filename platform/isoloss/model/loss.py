"""Losses over V symbols in chunks of tokens, so that no N x V matrix is ever kept."""

# N tokens, of a chunk or of all; V vocabulary, M width, D columns of the last matrix, K components, R = N * K rows

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoloss.tasks.base import UNSCORED

CPU_CHUNK_BYTES, GPU_CHUNK_BYTES = 2**23, 2**28
"""Bytes of logits in one chunk: on a CPU they stay in its last cache, on a GPU they keep it busy."""

TokenLoss = Callable[[Tensor, Tensor], Tensor]
"""From (hidden_NM, targets_N) to loss_N."""


def chunk_tokens(vocab_size: int, bytes_each: int = 4, device_type: str = "cpu") -> int:
    """Return the tokens of one chunk: about as many as its bytes allow.

    Matrix products are fast from 96 tokens on, and all is up to 1.4 times slower where 8 does not divide their number.
    """
    chunk_bytes = CPU_CHUNK_BYTES if device_type == "cpu" else GPU_CHUNK_BYTES
    return max(96, chunk_bytes // (vocab_size * bytes_each) // 32 * 32)


# --- any loss


def chunked_loss(token_loss: TokenLoss, hidden_NM: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
    """Return ``token_loss`` of every token, computed chunk by chunk and without gradient."""
    size = chunk_tokens(vocab_size, 4, hidden_NM.device.type)
    with torch.no_grad():
        chunks = zip(hidden_NM.split(size), targets_N.split(size), strict=True)
        return torch.cat([token_loss(hidden, targets) for hidden, targets in chunks])


@torch.compiler.disable  # type: ignore[untyped-decorator]
def chunked_sum(
    token_loss: TokenLoss, hidden_NM: Tensor, targets_N: Tensor, parameters: Sequence[Tensor], vocab_size: int
) -> Tensor:
    """Return the sum of ``token_loss`` over tokens, whose gradients are computed chunk by chunk in the forward pass.

    ``parameters`` are all tensors beside ``hidden_NM`` to which the gradient flows.
    """
    if not torch.is_grad_enabled():
        return chunked_loss(token_loss, hidden_NM, targets_N, vocab_size).sum()
    total: Tensor = _ChunkedSum.apply(token_loss, hidden_NM, targets_N, vocab_size, *parameters)
    return total


class _ChunkedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, token_loss: TokenLoss, hidden_NM: Tensor, targets_N: Tensor, vocab_size: int, *parameters: Tensor
    ) -> Tensor:
        size = chunk_tokens(vocab_size, 4, hidden_NM.device.type)
        losses, hidden_gradients = [], []
        gradients = [torch.zeros_like(tensor) if tensor.requires_grad else None for tensor in parameters]
        wanted = [(tensor, sum_) for tensor, sum_ in zip(parameters, gradients, strict=True) if sum_ is not None]
        for chunk_NM, chunk_N in zip(hidden_NM.split(size), targets_N.split(size), strict=True):
            leaf_NM = chunk_NM.detach().requires_grad_()
            with torch.enable_grad():
                loss = token_loss(leaf_NM, chunk_N).sum()
            by = (leaf_NM, *(tensor for tensor, _ in wanted))
            hidden_gradient, *parts = torch.autograd.grad(loss, by, allow_unused=True, materialize_grads=True)
            losses.append(loss.detach())
            hidden_gradients.append(hidden_gradient)
            for (_, gradient), part in zip(wanted, parts, strict=True):
                gradient += part
        ctx.save_for_backward(torch.cat(hidden_gradients), *gradients)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Any:
        gradient_NM, *gradients = ctx.saved_tensors
        return None, _times(gradient_NM, outer), None, None, *(_times(gradient, outer) for gradient in gradients)


def _times(gradient: Tensor | None, outer: Tensor) -> Tensor | None:
    """Return the gradient times ``outer``: in place, unless the graph is kept for another backward pass."""
    if gradient is None:
        return None
    kept = torch._C._autograd._get_current_graph_task_keep_graph()
    return gradient * outer if kept else gradient.mul_(outer)


# --- the cross-entropy of logits that are a product


class TokenGradients(NamedTuple):
    """What one pass over the logits tells of each token; rows of tokens that are not scored hold zeros."""

    loss_N: Tensor
    """Cross-entropy in nats."""

    log_z_N: Tensor
    """Logarithm of the sum of the logits' exponentials."""

    gradient_ND: Tensor
    """The token's own loss differentiated by its input, not divided by N."""

    total_N: Tensor
    """The squared norm of its loss's gradient by the logits, p - y."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def linear_cross_entropy(
    input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, *, bias_V: Tensor | None = None, z_loss: float = 0.0
) -> Tensor:
    """Return the cross-entropy of logits W x + b, plus ``z_loss`` (log Z)^2, summed over the scored tokens.

    In nats; a float32 scalar, float64 for such inputs. Gradients are computed in the forward pass, chunk by chunk,
    and have no gradient themselves. Under autocast the logits have its precision, and sums are float32.
    """
    if not torch.is_grad_enabled():
        return torch.cat([chunk.loss(z_loss) for chunk in _chunks(input_ND, weight_VD, targets_N, bias_V)]).sum()
    total: Tensor = _LinearCrossEntropy.apply(input_ND, weight_VD, targets_N, bias_V, z_loss)
    return total


@torch.compiler.disable  # type: ignore[untyped-decorator]
def mixture_cross_entropy(input_NKD: Tensor, weight_VD: Tensor, log_prior_NK: Tensor, targets_N: Tensor) -> Tensor:
    """Return the cross-entropy of the sum over k of pi_k softmax(W x_k), summed over the scored tokens.

    As ``linear_cross_entropy``, but always computes the gradients.
    """
    total: Tensor = _MixtureCrossEntropy.apply(input_NKD, weight_VD, log_prior_NK, targets_N)
    return total


@torch.no_grad()
def linear_losses(input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, *, bias_V: Tensor | None = None) -> Tensor:
    """Return each token's cross-entropy of logits W x + b in nats, 0 where it is not scored; it has no gradient."""
    return torch.cat([chunk.loss() for chunk in _chunks(input_ND, weight_VD, targets_N, bias_V)])


@torch.no_grad()
def token_gradients(
    input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, *, bias_V: Tensor | None = None
) -> TokenGradients:
    """Return each token's cross-entropy of logits W x + b, and the size of its gradients; float32, and no graph.

    ``total_N`` is (sum of p over all but the target)^2 + sum of p^2 over all but the target, which keeps its digits
    where a token is learnt and sum p^2 - 2 p_y + 1 cancels. float64 for such inputs.
    """
    parts = []
    for chunk in _chunks(input_ND, weight_VD, targets_N, bias_V):
        chunk.subtract_target()
        gradient_ND = chunk.input_gradient()
        total_N = chunk.numerators_VN.square_().sum(0).mul_(chunk.inverse_N.square())
        parts.append((chunk.loss(), chunk.log_z_N, gradient_ND, total_N))
    return TokenGradients(*map(torch.cat, zip(*parts, strict=True)))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None, z_loss: float
    ) -> Tensor:
        by_input, by_weight, _, by_bias, _ = ctx.needs_input_grad
        losses, input_gradients = [], []
        weight_gradient_VD = torch.zeros_like(weight_VD, dtype=_wide(input_ND)) if by_weight else None
        bias_gradient_V = None
        if bias_V is not None and by_bias:
            bias_gradient_V = torch.zeros_like(bias_V, dtype=_wide(input_ND))
        for chunk in _chunks(input_ND, weight_VD, targets_N, bias_V):
            losses.append(chunk.loss(z_loss))
            chunk.subtract_target(z_loss)
            if by_input:
                input_gradients.append(chunk.input_gradient())
            if weight_gradient_VD is not None:
                chunk.add_weight_gradient(weight_gradient_VD)
            if bias_gradient_V is not None:
                bias_gradient_V.addmv_(chunk.numerators_VN, chunk.inverse_N)
        input_gradient_ND = torch.cat(input_gradients) if by_input else None
        ctx.save_for_backward(input_gradient_ND, weight_gradient_VD, bias_gradient_V)
        return torch.cat(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Any:
        by_input_ND, by_weight_VD, by_bias_V = (_times(gradient, outer) for gradient in ctx.saved_tensors)
        return by_input_ND, by_weight_VD, None, by_bias_V, None


class _MixtureCrossEntropy(torch.autograd.Function):
    """The loss is -log of the sum over k of exp(log pi_k - l_k), l_k the cross-entropy of component k alone.

    Its gradient by l_k is the posterior of k given the target, and that by log pi_k is minus the posterior.
    """

    @staticmethod
    def forward(ctx: Any, input_NKD: Tensor, weight_VD: Tensor, log_prior_NK: Tensor, targets_N: Tensor) -> Tensor:
        K = input_NKD.shape[1]
        input_RD, targets_R = input_NKD.flatten(0, 1), targets_N.repeat_interleave(K)
        size = -(-chunk_tokens(len(weight_VD), 4, input_NKD.device.type) // K)
        losses, input_gradients, prior_gradients = [], [], []
        weight_gradient_VD = torch.zeros_like(weight_VD, dtype=_wide(input_NKD))
        chunks = _chunks(input_RD, weight_VD, targets_R, None, size * K)
        for chunk, prior_NK in zip(chunks, log_prior_NK.split(size), strict=True):
            joint_NK = prior_NK - chunk.loss().view(-1, K)
            unscored_N = chunk.unscored_N.view(-1, K)[:, 0]
            losses.append(-joint_NK.logsumexp(1).masked_fill(unscored_N, 0.0))
            posterior_NK = joint_NK.softmax(1).masked_fill_(unscored_N.unsqueeze(1), 0.0)
            prior_gradients.append(-posterior_NK)
            chunk.subtract_target()
            chunk.inverse_N *= posterior_NK.flatten()
            input_gradients.append(chunk.input_gradient())
            chunk.add_weight_gradient(weight_gradient_VD)
        by_input_NKD = torch.cat(input_gradients).view(input_NKD.shape)
        ctx.save_for_backward(by_input_NKD, weight_gradient_VD, torch.cat(prior_gradients))
        return torch.cat(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Any:
        return *(_times(gradient, outer) for gradient in ctx.saved_tensors), None


class _Chunk:
    """The softmax of some tokens, in the workspace: numerators exp(z - max z), and the inverse of their sum.

    The numerators hold 0 at the target, so that 1 - p_y = ``rest_N`` ``inverse_N`` has its digits also when the token
    is learnt. ``inverse_N`` is 0 for tokens that are not scored, which takes them out of every gradient.
    """

    def __init__(self, input_ND: Tensor, weight_VD: Tensor, logits_VN: Tensor, targets_N: Tensor) -> None:
        self.input_ND, self.weight_VD = input_ND, weight_VD
        self.unscored_N = targets_N == UNSCORED
        self.target_1N = targets_N.masked_fill(self.unscored_N, 0).unsqueeze(0)
        largest_N = logits_VN.amax(0)
        below_N = logits_VN.sub_(largest_N).gather(0, self.target_1N).squeeze(0)
        self.numerators_VN = logits_VN.exp_().scatter_(0, self.target_1N, 0.0)
        self.rest_N, self.at_target_N = self.numerators_VN.sum(0), below_N.exp()
        log_sum_N = torch.log1p(self.rest_N + torch.expm1(below_N))  # keeps its digits where it is almost 0
        self.cross_entropy_N = (log_sum_N - below_N).masked_fill_(self.unscored_N, 0.0)
        self.log_z_N = (log_sum_N + largest_N).masked_fill_(self.unscored_N, 0.0)
        self.inverse_N = (self.rest_N + self.at_target_N).reciprocal_().masked_fill_(self.unscored_N, 0.0)

    def loss(self, z_loss: float = 0.0) -> Tensor:
        return self.cross_entropy_N + z_loss * self.log_z_N**2 if z_loss else self.cross_entropy_N

    def subtract_target(self, z_loss: float = 0.0) -> None:
        """Turn the numerators into those of the loss's gradient by the logits."""
        target_N = -self.rest_N
        if z_loss:
            more_N = 2 * z_loss * self.log_z_N
            self.numerators_VN.mul_(1 + more_N)
            target_N += more_N * self.at_target_N
        self.numerators_VN.scatter_(0, self.target_1N, target_N.unsqueeze(0))
        self.factor_VN = self.numerators_VN.to(self.weight_VD.dtype)

    def input_gradient(self) -> Tensor:
        gradient_ND = self.rest_N.new_empty(self.input_ND.shape)
        return _product(self.factor_VN.T, self.weight_VD, gradient_ND).mul_(self.inverse_N.unsqueeze(1))

    def add_weight_gradient(self, gradient_VD: Tensor) -> None:
        weighted_ND = (self.input_ND * self.inverse_N.unsqueeze(1)).to(self.factor_VN.dtype)
        if weighted_ND.dtype == gradient_VD.dtype:
            gradient_VD.addmm_(self.factor_VN, weighted_ND)
        else:
            gradient_VD += _product(self.factor_VN, weighted_ND, torch.empty_like(gradient_VD))


def _chunks(
    input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None, size: int | None = None
) -> Iterator[_Chunk]:
    """Yield the softmax of each ``size`` tokens. All share one workspace: a chunk is over when the next begins.

    The logits' axes are turned, V x N: products with a short second axis are up to twice as fast on a CPU.
    """
    V, device = len(weight_VD), input_ND.device
    narrow, dtype = _narrow(input_ND), _wide(input_ND)
    size = size or chunk_tokens(V, dtype.itemsize, device.type)
    narrow_VD = weight_VD.detach().to(narrow)
    # A CPU rounds a product of bfloat16 to bfloat16, which is too coarse for gradients.
    factor_VD = narrow_VD if device.type == "cuda" else weight_VD.detach().to(dtype)
    for chunk_ND, chunk_N in zip(input_ND.detach().split(size), targets_N.split(size), strict=True):
        logits_VN = _workspace.matrix((V, len(chunk_ND)), dtype, device)
        _product(narrow_VD, chunk_ND.to(narrow).T, logits_VN)
        if bias_V is not None:
            logits_VN += bias_V.detach().unsqueeze(1)
        yield _Chunk(chunk_ND, factor_VD, logits_VN, chunk_N)


def _product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write the matrix product into ``out``, which may be of a wider type than the factors.

    Autocast changes no operation that writes into a given tensor.
    """
    if left.dtype == out.dtype:
        return torch.mm(left, right, out=out)
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=out.dtype, out=out)
    narrow = _workspace.matrix(out.shape, left.dtype, left.device)
    return out.copy_(torch.mm(left, right, out=narrow))


def _narrow(input_ND: Tensor) -> torch.dtype:
    kind = input_ND.device.type
    autocast = torch.is_autocast_enabled(kind) and input_ND.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if autocast else input_ND.dtype


def _wide(input_ND: Tensor) -> torch.dtype:
    return torch.float64 if input_ND.dtype == torch.float64 else torch.float32


class _Workspace(threading.local):
    """One buffer a device and type, as large as the largest chunk so far: fresh memory would cost page faults."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def matrix(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        buffer, size = self.buffers.get((device, dtype)), math.prod(shape)
        if buffer is None or buffer.numel() < size:
            buffer = self.buffers[device, dtype] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(*shape)


_workspace = _Workspace()
