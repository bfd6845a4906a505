"""Losses in chunks of tokens, against plain formulas in float64."""

# N tokens, V vocabulary, D columns of the last matrix

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import isoloss.model.loss
from isoloss.model.loss import chunked_loss, chunked_sum, linear_cross_entropy, linear_losses, token_gradients
from isoloss.tasks.base import UNSCORED

torch.set_num_threads(1)

CHUNK = 16


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isoloss.model.loss, "chunk_tokens", lambda *_: CHUNK)


class Problem(NamedTuple):
    input_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor
    targets_N: Tensor

    def leaves(self, dtype: torch.dtype = torch.float32) -> Problem:
        values = (tensor.to(dtype, copy=True).requires_grad_() for tensor in self[:3])
        return Problem(*values, self.targets_N)

    def loss(self, z_loss: float = 0.0) -> Tensor:
        return linear_cross_entropy(self.input_ND, self.weight_VD, self.targets_N, bias_V=self.bias_V, z_loss=z_loss)

    def gradients(self) -> list[Tensor]:
        return [tensor.grad.double() for tensor in self[:3]]


def problem(N: int = 2 * CHUNK + 5, V: int = 29, D: int = 7, size: float = 1.0, seed: int = 0) -> Problem:
    """Return random tokens, some of them not scored, whose logits are of the given size."""
    generator = torch.Generator().manual_seed(seed)
    input_ND = torch.randn(N, D, generator=generator) * size
    weight_VD, bias_V = torch.randn(V, D, generator=generator), torch.randn(V, generator=generator)
    targets_N = torch.randint(V, (N,), generator=generator)
    targets_N[0], targets_N[1], targets_N[2], targets_N[-1] = 0, V - 1, UNSCORED, UNSCORED
    return Problem(input_ND, weight_VD, bias_V, targets_N)


def learnt(rest: float) -> Problem:
    """Return tokens of which the first has 1 - p_y = ``rest`` and those after it ever less."""
    V = 9
    weight_VD = torch.eye(V) * (math.log((V - 1) / rest) + 0.3 * torch.arange(V))
    return Problem(torch.eye(V) + 0.01, weight_VD, torch.zeros(V), torch.arange(V))


def naive(p: Problem, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return each token's loss and logits, by torch's own functions in float64."""
    logits_NV = p.input_ND.double() @ p.weight_VD.double().T + p.bias_V.double()
    loss_N = F.cross_entropy(logits_NV, p.targets_N, ignore_index=UNSCORED, reduction="none")
    scored_N = p.targets_N != UNSCORED
    return loss_N + z_loss * logits_NV.logsumexp(-1).square() * scored_N, logits_NV


def relative(actual: Tensor, expected: Tensor) -> float:
    """Return the error's Frobenius norm over that of what is expected."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


# --- the value and its gradients


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_loss_and_gradients_are_the_formulas_in_float64(size: float, z_loss: float) -> None:
    ours, theirs = problem(size=size).leaves(), problem(size=size).leaves(torch.float64)
    total = ours.loss(z_loss)
    (2.5 * total).backward()
    expected = naive(theirs, z_loss)[0].sum()
    (2.5 * expected).backward()
    assert total.shape == ()
    assert total.dtype == torch.float32
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for actual, exact in zip(ours.gradients(), theirs.gradients(), strict=True):
        assert relative(actual, exact) < 1e-5 * max(1, size / 30)  # rounded logits: 2^-24 of z each


@pytest.mark.parametrize("N", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_any_number_of_tokens_is_one_sum(N: int) -> None:
    p = problem(max(N, 4))
    p = Problem(p.input_ND[:N], p.weight_VD, p.bias_V, p.targets_N[:N])
    ours, theirs = p.leaves(torch.float64), p.leaves(torch.float64)
    ours.loss().backward()
    naive(theirs)[0].sum().backward()
    for actual, exact in zip(ours.gradients(), theirs.gradients(), strict=True):
        torch.testing.assert_close(actual, exact, rtol=1e-12, atol=1e-13)


def test_gradcheck_in_float64() -> None:
    p = problem(CHUNK + 3, V=5, D=3).leaves(torch.float64)
    assert torch.autograd.gradcheck(lambda *leaves: Problem(*leaves, p.targets_N).loss(0.2), p[:3])


@pytest.mark.parametrize("rest", [1e-3, 1e-11])
def test_a_learnt_token_keeps_its_digits(rest: float) -> None:
    """Subtracted from 1 in float32, as elsewhere, a probability of 1 - 1e-11 leaves none."""
    ours, torchs, exact = learnt(rest).leaves(), learnt(rest).leaves(), learnt(rest)
    ours.loss().backward()
    F.cross_entropy(F.linear(torchs.input_ND, torchs.weight_VD), torchs.targets_N, reduction="sum").backward()
    found = token_gradients(exact.input_ND, exact.weight_VD, exact.targets_N)

    probability_NV = naive(exact)[1].softmax(-1)
    other_NV = probability_NV.masked_fill(torch.eye(9, dtype=torch.bool), 0)
    rest_N = other_NV.sum(-1)
    assert rest_N[0] == pytest.approx(rest, rel=0.02)
    by_logits_NV = other_NV - rest_N.diag()
    by_input_ND, by_weight_VD = by_logits_NV @ exact.weight_VD.double(), by_logits_NV.T @ exact.input_ND.double()
    total_N = rest_N.square() + other_NV.square().sum(-1)
    textbook_N = probability_NV.float().square().sum(-1) - 2 * probability_NV.float().diagonal() + 1
    torch.testing.assert_close(found.loss_N.double(), -torch.log1p(-rest_N), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.total_N.double(), total_N, rtol=1e-5, atol=0)
    for actual, expected in (
        (ours.input_ND.grad, by_input_ND),
        (ours.weight_VD.grad, by_weight_VD),
        (found.gradient_ND, by_input_ND),
    ):
        assert relative(actual, expected) < 1e-5
    if rest == 1e-11:
        assert relative(torchs.input_ND.grad, by_input_ND) > 0.5
        assert relative(textbook_N, total_N) > 0.5


def test_tokens_apart_are_those_of_autograd() -> None:
    p = problem()
    found = token_gradients(p.input_ND, p.weight_VD, p.targets_N, bias_V=p.bias_V)
    assert all(value.dtype == torch.float32 and not value.requires_grad for value in found)
    exact = p.leaves(torch.float64)
    loss_N, logits_NV = naive(exact)
    (by_logits_NV,) = torch.autograd.grad(loss_N.sum(), logits_NV, retain_graph=True)
    (by_input_ND,) = torch.autograd.grad(loss_N.sum(), exact.input_ND)  # no token is in another's loss
    scored_N = p.targets_N != UNSCORED
    expected = (loss_N, logits_NV.logsumexp(-1) * scored_N, by_input_ND, by_logits_NV.square().sum(-1))
    for actual, value in zip(found, expected, strict=True):
        torch.testing.assert_close(actual.double(), value.detach(), rtol=2e-6, atol=2e-6)
        assert bool((actual[~scored_N] == 0).all())
    assert token_gradients(*exact[:2], p.targets_N).gradient_ND.dtype == torch.float64


def test_losses_without_gradient_are_the_same() -> None:
    p = problem().leaves()
    loss_N = linear_losses(p.input_ND, p.weight_VD, p.targets_N, bias_V=p.bias_V)
    assert not loss_N.requires_grad
    torch.testing.assert_close(loss_N.double(), naive(problem())[0], rtol=2e-6, atol=2e-6)
    with torch.no_grad():
        total = p.loss(0.3)
    assert not total.requires_grad
    assert float(total) == pytest.approx(float(naive(problem(), 0.3)[0].sum()), rel=1e-6)


def test_nothing_scored_is_zero() -> None:
    p = problem()._replace(targets_N=torch.full((37,), UNSCORED)).leaves()
    total = p.loss(0.3)
    total.backward()
    assert total.item() == 0
    assert all(bool((gradient == 0).all()) for gradient in p.gradients())


@pytest.mark.parametrize("only", [0, 1, 2])
def test_what_is_frozen_gets_no_gradient_and_changes_none(only: int) -> None:
    whole, part = problem().leaves(), problem().leaves()
    whole.loss(0.1).backward()
    for i, tensor in enumerate(part[:3]):
        tensor.requires_grad_(i == only)
    part.loss(0.1).backward()
    assert torch.equal(part[only].grad, whole[only].grad)
    assert [tensor.grad is None for tensor in part[:3]] == [i != only for i in range(3)]


@pytest.mark.parametrize("loss", [lambda p: p.loss(0.1), lambda p: generic(p)], ids=["linear", "any"])
def test_a_graph_that_is_kept_gives_its_gradients_again(loss: Any) -> None:
    p = problem().leaves()
    total = loss(p)
    first, second = (torch.autograd.grad(total * factor, p[:2], retain_graph=True) for factor in (1, 3))
    last = torch.autograd.grad(total, p[:2])
    for one, three, again in zip(first, second, last, strict=True):
        torch.testing.assert_close(three, 3 * one)
        assert torch.equal(again, one)
    (gradient_ND,) = torch.autograd.grad(loss(p) ** 2, p.input_ND, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient_ND.sum().backward()


# --- the workspace


def test_losses_that_wait_for_their_backward_pass_do_not_share_their_results() -> None:
    kinds = [{"N": 40, "V": 29}, {"N": 7, "V": 5}, {"N": 50, "V": 200, "D": 3}, {"N": 40, "V": 29, "seed": 1}]
    apart = [problem(**kind).leaves() for kind in kinds]
    for p in apart:
        p.loss().backward()
    together = [problem(**kind).leaves() for kind in kinds]
    losses = [p.loss() for p in together]
    for loss in reversed(losses):
        loss.backward()
    for one, other in zip(apart, together, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one.gradients(), other.gradients(), strict=True))


class _Allocations(TorchDispatchMode):
    """Notes the elements of every tensor that an operation returns, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not function.is_view and "out" not in (kwargs or {}):
            in_place = args and isinstance(args[0], Tensor) and args[0].data_ptr() == result.data_ptr()
            self.sizes += [] if in_place else [result.numel()]
        return result


@contextmanager
def allocations() -> Iterator[list[int]]:
    with _Allocations() as mode:
        yield mode.sizes


def test_no_matrix_of_tokens_by_symbols_is_allocated_and_the_chunks_only_once() -> None:
    """The first pass allocates one chunk's matrix; the second none, so that its largest tensor is W's gradient."""
    V, D = 997, 5
    isoloss.model.loss._workspace.buffers.clear()
    p = problem(20 * CHUNK, V, D).leaves()
    for largest in (V * CHUNK, V * D):
        with allocations() as sizes:
            p.loss(0.1).backward()
            token_gradients(p.input_ND, p.weight_VD, p.targets_N)
            linear_losses(p.input_ND, p.weight_VD, p.targets_N)
        assert max(sizes) == largest
        assert sizes.count(V * D) == 1
        p.weight_VD.grad = None


# --- fewer digits


def test_autocast_keeps_gradients_to_6e_3_and_losses_to_1_5e_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a unit in bfloat16's last place is 2^-9 of a logit, here of order 1; errors of N tokens average out."""
    monkeypatch.setattr(isoloss.model.loss, "chunk_tokens", lambda *_: 100)
    p = problem(500, V=512, D=64, size=0.125)
    ours, theirs = p.leaves(), p.leaves(torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = ours.loss()
        found = token_gradients(p.input_ND, p.weight_VD, p.targets_N, bias_V=p.bias_V)
    total.backward()
    expected = naive(theirs)[0].sum()
    expected.backward()
    assert total.dtype == ours.input_ND.grad.dtype == ours.weight_VD.grad.dtype == torch.float32
    assert abs(float(total.detach() / expected.detach()) - 1) < 1.5e-5
    for actual, exact in zip(ours.gradients(), theirs.gradients(), strict=True):
        assert 1e-5 < relative(actual, exact) < 6e-3  # above: autocast did lower the logits' precision
    torch.testing.assert_close(found.gradient_ND, ours.input_ND.grad)
    # Beside the logits, rounded to 2^-9, nothing was.
    logits_NV = (p.input_ND.bfloat16() @ p.weight_VD.bfloat16().T).double() + p.bias_V.double()
    scored_N1 = (p.targets_N != UNSCORED).unsqueeze(1)
    by_logits_NV = (logits_NV.softmax(-1) - F.one_hot(p.targets_N.clamp(min=0), 512)) * scored_N1
    assert relative(found.gradient_ND, by_logits_NV @ p.weight_VD.double()) < 1e-4


def test_an_input_in_bfloat16_has_its_gradient_apart_in_float32() -> None:
    p = problem()
    narrow = Problem(p.input_ND.bfloat16(), p.weight_VD.bfloat16(), p.bias_V, p.targets_N)
    found = token_gradients(narrow.input_ND, narrow.weight_VD, p.targets_N, bias_V=p.bias_V)
    exact = narrow.leaves(torch.float64)
    naive(exact)[0].sum().backward()
    assert found.gradient_ND.dtype == torch.float32
    assert relative(found.gradient_ND, exact.input_ND.grad) < 1e-2
    assert not torch.equal(found.gradient_ND.bfloat16().float(), found.gradient_ND)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("narrow", "bound"), [(False, 1e-5), (True, 6e-3)])
def test_cuda_has_the_formulas_gradients(narrow: bool, bound: float) -> None:
    p = problem(500, V=512, D=64, size=0.125)
    ours, theirs = Problem(*(tensor.cuda() for tensor in p)).leaves(), p.leaves(torch.float64)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=narrow):
        total = ours.loss(0.1)
        found = token_gradients(ours.input_ND, ours.weight_VD, ours.targets_N, bias_V=ours.bias_V)
    total.backward()
    expected = naive(theirs, 0.1)[0].sum()
    expected.backward()
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1.5e-5)
    for actual, exact in zip(ours.gradients(), theirs.gradients(), strict=True):
        assert relative(actual.cpu(), exact) < bound
    (by_input_ND,) = torch.autograd.grad(naive(theirs)[0].sum(), theirs.input_ND)
    assert relative(found.gradient_ND.cpu(), by_input_ND) < bound


# --- any loss in chunks


def generic(p: Problem) -> Tensor:
    """The same cross-entropy through the chunks of any loss."""

    def token_loss(input_ND: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV = F.linear(input_ND, p.weight_VD, p.bias_V).float()
        return F.cross_entropy(logits_NV, targets_N, ignore_index=UNSCORED, reduction="none")

    return chunked_sum(token_loss, p.input_ND, p.targets_N, [p.weight_VD, p.bias_V], len(p.weight_VD))


@pytest.mark.parametrize("frozen", [None, 0, 1, 2])
def test_any_loss_in_chunks_has_the_gradients_of_the_whole(frozen: int | None) -> None:
    ours, theirs = problem().leaves(), problem().leaves(torch.float64)
    if frozen is not None:
        ours[frozen].requires_grad_(False)
    total = generic(ours)
    (2.5 * total).backward()
    expected = naive(theirs)[0].sum()
    (2.5 * expected).backward()
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for i in range(3):
        if i == frozen:
            assert ours[i].grad is None
        else:
            assert relative(ours[i].grad, theirs[i].grad) < 1e-6


def test_any_loss_under_autocast_reaches_every_chunks_weights() -> None:
    """Autocast keeps a weight's cast from chunk to chunk, and must keep its gradient too."""
    ours, theirs = problem(size=0.3).leaves(), problem(size=0.3).leaves(torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        generic(ours).backward()
    naive(theirs)[0].sum().backward()
    for actual, exact in zip(ours.gradients(), theirs.gradients(), strict=True):
        assert relative(actual, exact) < 1e-2


def test_any_loss_without_gradient_is_computed_chunk_by_chunk() -> None:
    p, seen = problem().leaves(), []

    def token_loss(input_ND: Tensor, targets_N: Tensor) -> Tensor:
        seen.append((len(targets_N), torch.is_grad_enabled()))
        return input_ND.sum(-1) * targets_N

    expected_N = p.input_ND.detach().sum(-1) * p.targets_N
    assert torch.equal(chunked_loss(token_loss, p.input_ND, p.targets_N, 29), expected_N)
    with torch.no_grad():
        total = chunked_sum(token_loss, p.input_ND, p.targets_N, [], 29)
    torch.testing.assert_close(total, expected_N.sum())
    assert seen == [(CHUNK, False), (CHUNK, False), (5, False)] * 2


def test_a_compiled_model_goes_through_the_chunks() -> None:
    ours, theirs = problem().leaves(), problem().leaves()
    torch.compile(lambda p: (2 * p.input_ND, p._replace(input_ND=2 * p.input_ND).loss())[1], backend="eager")(
        ours
    ).backward()
    theirs._replace(input_ND=2 * theirs.input_ND).loss().backward()
    for actual, expected in zip(ours.gradients(), theirs.gradients(), strict=True):
        assert torch.equal(actual, expected)
