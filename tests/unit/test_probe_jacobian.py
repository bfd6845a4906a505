"""Survival through any head against singular value decompositions of its Jacobians in float64."""

# N tokens, V classes, M width, K components

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isoloss.probe.jacobian
from isoloss import Decoder
from isoloss.config import heads as config
from isoloss.model.heads import build_head
from isoloss.model.heads.base import Head
from isoloss.probe.jacobian import function_survival, linearised
from isoloss.probe.survival import Survival, factor, kept
from isoloss.tasks.base import UNSCORED

torch.set_num_threads(1)

V, M, N = 67, 8, 6


@pytest.fixture(autouse=True)
def float64_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads compute in float32 at least; here the exact ones may have more digits."""
    to_float32 = Tensor.float
    monkeypatch.setattr(Tensor, "float", lambda self: self if self.dtype == torch.float64 else to_float32(self))


class HandMade(Head):
    """A head of a few lines, so that the probe is tested on what is in plain sight."""

    vocab_size = V

    def __init__(self, condition: float = 30.0) -> None:
        super().__init__()
        weight_VM = random(V, M, seed=1) * torch.logspace(0, -math.log10(condition), M)
        self.weight_VM = nn.Parameter(weight_VM @ torch.linalg.qr(random(M, M, seed=2))[0])


class Sigmoid(HandMade):
    def logits(self, hidden_NM: Tensor) -> Tensor:
        logits_NV = F.linear(hidden_NM, self.weight_VM)
        return logits_NV + F.logsigmoid(logits_NV)

    def last_matrix(self) -> Tensor:
        return self.weight_VM


class TwoComponents(HandMade):
    def __init__(self, condition: float = 30.0) -> None:
        super().__init__(condition)
        self.in_2MM = nn.Parameter(random(2, M, M, seed=3) / M**0.5)
        self.prior_2M = nn.Parameter(random(2, M, seed=4) / M**0.5)

    def log_probabilities(self, hidden_NM: Tensor) -> Tensor:
        prior_N2 = F.log_softmax(F.linear(hidden_NM, self.prior_2M), dim=-1)
        inputs_2NM = [F.linear(hidden_NM, in_MM) for in_MM in self.in_2MM]
        parts = [F.log_softmax(F.linear(input_NM, self.weight_VM), dim=-1) for input_NM in inputs_2NM]
        return torch.logsumexp(prior_N2[:, :, None] + torch.stack(parts, dim=1), dim=1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(head: Head, count: int = N) -> tuple[Tensor, Tensor]:
    """Hidden states of unit variance, and targets of which the first is the likeliest."""
    hidden_NM = random(count, M, seed=5)
    targets_N = torch.randint(V, (count,), generator=torch.Generator().manual_seed(6))
    targets_N[0] = head.log_probabilities(hidden_NM)[0, :V].argmax()
    return hidden_NM, targets_N


def explicit(head: Head, hidden_NM: Tensor, targets_N: Tensor, share: float = 1e-9) -> tuple[Tensor, Tensor]:
    """Kept and total of each token by the definition, in float64; J row by row."""
    exact = copy.deepcopy(head).double()
    for embedding in getattr(exact, "tied_to", ()):
        embedding.double()
    leaf_NM = hidden_NM.double().requires_grad_()
    log_probability_NV = exact.log_probabilities(leaf_NM)
    classes = log_probability_NV.shape[1]
    rows = [torch.autograd.grad(log_probability_NV[:, v].sum(), leaf_NM, retain_graph=True)[0] for v in range(classes)]
    jacobian_NVM = torch.stack(rows, dim=1).double()
    gradient_NV = log_probability_NV.detach().double().exp().scatter(1, targets_N[:, None], 0.0)
    gradient_NV.scatter_(1, targets_N[:, None], -gradient_NV.sum(-1, keepdim=True))
    left_NVM, singular_NM, _ = torch.linalg.svd(jacobian_NVM - jacobian_NVM.mean(1, keepdim=True), full_matrices=False)
    counted_NM = singular_NM > share * singular_NM[:, :1]
    along_NM = torch.einsum("nv,nvm->nm", gradient_NV, left_NVM)
    return (along_NM.square() * counted_NM).sum(-1), gradient_NV.square().sum(-1)


def built() -> Iterator[Any]:
    """Heads of every kind in the repository, some in several forms."""
    yield from (config.Linear(), config.Linear(tied=True), config.LowRank(rank=3), config.BackwardRank(rank=3))
    yield from (config.Linear(bias=True, scale=0.5), config.Linear(softcap=2.0), config.ProjectedUpdate())
    yield from (config.Mixture(components=3), config.Mixture(components=2, rank=3), config.Sigsoftmax())
    yield from (config.Monotone(), config.Spherical(), config.Spherical(taylor=True), config.Adaptive(narrowing=2.0))
    yield from (config.Wide(), config.Wide(gated=True), config.Wide(gated=True, factor=0.5), config.Entmax(alpha=1.3))
    yield from (config.Experts(rank=4), config.DummyClasses(count=5), config.Sparsemax())


def build(declared: Any) -> Head:
    embedding = nn.Embedding(V + 1, M)
    head = build_head(declared, V, Decoder(width=M, depth=1), embedding)
    with torch.no_grad():
        for seed, parameter in enumerate((*head.parameters(), embedding.weight)):
            parameter.copy_(0.7 * random(*parameter.shape, seed=seed))
    return head


# --- against the definition


@pytest.mark.parametrize("declared", built(), ids=lambda declared: declared.label)
def test_every_head_keeps_the_projection_on_its_jacobians_columns(declared: Any) -> None:
    head = build(declared)
    hidden_NM, targets_N = tokens(head)
    found = function_survival(head, hidden_NM, targets_N)
    kept_N, total_N = explicit(head, hidden_NM, targets_N, 1e-6)
    torch.testing.assert_close(found.total_N, total_N, rtol=2e-5, atol=1e-10)
    torch.testing.assert_close(found.kept_N, kept_N, rtol=2e-3, atol=1e-10)
    assert float(found.kept_N.sum()) == pytest.approx(float(kept_N.sum()), rel=1e-3)
    assert bool(found.converged_N.all())
    assert found.classes == V + (5 if declared.kind == "dummy_classes" else 0)


@pytest.mark.parametrize("condition", [1, 1e2, 1e4])
@pytest.mark.parametrize("form", [Sigmoid, TwoComponents])
def test_hand_made_heads_in_float64_agree_to_ten_digits(form: type[HandMade], condition: float) -> None:
    head = form(condition)
    hidden_NM, targets_N = tokens(head)
    kept_N, total_N = explicit(head, hidden_NM, targets_N)
    found = function_survival(head.double(), hidden_NM.double(), targets_N, tolerance=1e-12)
    torch.testing.assert_close(found.total_N, total_N, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.kept_N, kept_N, rtol=1e-8, atol=0)


@pytest.mark.parametrize("condition", [1, 1e2, 1e4])
@pytest.mark.parametrize("form", [Sigmoid, TwoComponents])
def test_float32_is_enough_at_the_default_tolerance(form: type[HandMade], condition: float) -> None:
    head = form(condition)
    hidden_NM, targets_N = tokens(head)
    kept_N, _ = explicit(head, hidden_NM, targets_N)
    found = function_survival(head, hidden_NM, targets_N)
    assert float(found.kept_N.sum()) == pytest.approx(float(kept_N.sum()), rel=1e-3)
    assert int(found.iterations_N.max()) <= (4 if form is Sigmoid else M)


@pytest.mark.parametrize("condition", [1, 1e2, 1e4])
def test_a_linear_head_agrees_with_its_centred_matrix_in_one_step(condition: float) -> None:
    head = build(config.Linear())
    with torch.no_grad():
        head.weight_VM.copy_(HandMade(condition).weight_VM)
    hidden_NM, targets_N = tokens(head)
    found = function_survival(head, hidden_NM, targets_N)
    weight_VM = head.weight_VM.detach()
    gradient_NV = (hidden_NM.double() @ weight_VM.double().T).softmax(-1) - F.one_hot(targets_N, V)
    parts = factor(weight_VM, centred=True)
    expected = Survival(kept(gradient_NV @ weight_VM.double(), parts), gradient_NV.square().sum(-1), parts.rank, V)
    assert found.share == pytest.approx(expected.share, rel=1e-5)
    assert found.gain == pytest.approx(expected.gain, rel=1e-5)
    assert found.iterations_N.tolist() == [1] * N


def test_ranks_are_those_of_the_jacobian() -> None:
    ranks = {config.LowRank(rank=3): 3, config.Wide(gated=True, factor=0.5): 4, config.Mixture(components=2): M}
    for declared, rank in ranks.items():
        head = build(declared)
        assert function_survival(head, *tokens(head)).rank == rank


def test_products_with_a_jacobian_are_those_of_the_matrix() -> None:
    head = TwoComponents().double()
    hidden_NM, tangent_NM, cotangent_NV = random(N, M).double(), random(N, M, seed=1).double(), random(N, V).double()
    with torch.no_grad():
        value_NV, push, pull = linearised(head.log_probabilities, hidden_NM)
        pushed_NV, pulled_NM = push(tangent_NM), pull(cotangent_NV)
        step = 1e-6
        ends = [head.log_probabilities(hidden_NM + sign * step * tangent_NM) for sign in (1, -1)]
    torch.testing.assert_close(value_NV, head.log_probabilities(hidden_NM).detach(), rtol=0, atol=0)
    torch.testing.assert_close(pushed_NV, (ends[0] - ends[1]) / (2 * step), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close((pushed_NV * cotangent_NV).sum(-1), (pulled_NM * tangent_NM).sum(-1), rtol=1e-12, atol=0)


# --- how it gets there


def test_more_steps_only_add_and_never_too_much() -> None:
    head = TwoComponents(1e2)
    hidden_NM, targets_N = tokens(head)
    kept_N, _ = explicit(head, hidden_NM, targets_N)
    found = [function_survival(head, hidden_NM, targets_N, iterations, 0.0) for iterations in range(1, M + 1)]
    for fewer, more in itertools.pairwise(found):
        assert bool((more.kept_N >= fewer.kept_N).all())
    assert bool((found[-1].kept_N <= kept_N * (1 + 1e-4)).all())
    assert bool((found[0].kept_N < 0.9 * kept_N).any())
    assert not found[0].converged_N.any()
    assert bool(found[-1].converged_N.all())  # M steps leave nothing to add


def test_a_learnt_token_is_measured_by_what_is_left_of_its_gradient() -> None:
    """1 - p_y is below 1e-11, which p_y in float32 does not show."""
    head = Sigmoid(1.0)
    with torch.no_grad():
        head.weight_VM.div_(head.weight_VM.norm(dim=-1, keepdim=True))
    hidden_NM, targets_N = 60 * head.weight_VM.detach()[:2], torch.tensor([0, 1])
    exact = copy.deepcopy(head).double().log_probabilities(hidden_NM.double())
    others_NV = exact.detach().exp().scatter(1, targets_N[:, None], 0.0)
    rest_N = others_NV.sum(-1)
    assert 0 < float(rest_N.min()) < 1e-11
    found = function_survival(head, hidden_NM, targets_N)
    torch.testing.assert_close(found.total_N, rest_N.square() + others_NV.square().sum(-1), rtol=1e-4, atol=0)
    kept_N, total_N = explicit(head, hidden_NM, targets_N)
    torch.testing.assert_close(found.suppressed_N, (1 - kept_N / total_N).sqrt(), rtol=1e-5, atol=0)


def test_where_nothing_survives_it_stops_at_once() -> None:
    """A target without probability under sparsemax: no small step of h changes its smoothed probability."""
    head = build(config.Sparsemax())
    hidden_NM = 0.1 * random(N, M, seed=5)
    targets_N = head.log_probabilities(hidden_NM).argmin(-1)
    found = function_survival(head, hidden_NM, targets_N)
    assert bool((found.kept_N < 1e-10).all())
    assert bool(found.converged_N.all())
    assert int(found.iterations_N.max()) <= 1
    assert found.total_N.tolist() == pytest.approx(explicit(head, hidden_NM, targets_N)[1].tolist(), rel=1e-4)


def test_unscored_tokens_have_neither_gradient_nor_steps() -> None:
    head = TwoComponents()
    hidden_NM, targets_N = tokens(head)
    whole = function_survival(head, hidden_NM, targets_N)
    some = function_survival(head, hidden_NM, targets_N.where(torch.arange(N) != 2, UNSCORED))
    for figures, expected in ((some.kept_N, whole.kept_N), (some.total_N, whole.total_N)):
        assert float(figures[2]) == 0.0
        torch.testing.assert_close(figures[[0, 1, 3, 4, 5]], expected[[0, 1, 3, 4, 5]], rtol=1e-5, atol=0)
    assert int(some.iterations_N[2]) == 0
    assert math.isnan(function_survival(head, hidden_NM, torch.full((N,), UNSCORED)).share)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Sigmoid()
    hidden_NM, targets_N = tokens(head)
    whole = function_survival(head, hidden_NM, targets_N)
    monkeypatch.setattr(isoloss.probe.jacobian, "chunk_tokens", lambda *_: 4)
    in_chunks = function_survival(head, hidden_NM, targets_N)
    torch.testing.assert_close(in_chunks.kept_N, whole.kept_N, rtol=1e-4, atol=0)


def test_autocast_changes_nothing_and_no_gradient_is_left() -> None:
    head = TwoComponents()
    hidden_NM, targets_N = tokens(head)
    expected = function_survival(head, hidden_NM, targets_N)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = function_survival(head, hidden_NM.requires_grad_(), targets_N)
    assert torch.equal(found.kept_N, expected.kept_N)
    assert not found.kept_N.requires_grad
    assert all(parameter.grad is None for parameter in (hidden_NM, *head.parameters()))


def test_what_is_not_finite_is_not_hidden() -> None:
    head = Sigmoid()
    hidden_NM, targets_N = tokens(head)
    hidden_NM[1] = math.nan
    found = function_survival(head, hidden_NM, targets_N)
    assert math.isnan(found.share)
    assert found.suppressed_N.isnan().tolist() == [False, True, False, False, False, False]
    with torch.no_grad():
        head.weight_VM[3, 2] = math.nan
    assert math.isnan(function_survival(head, hidden_NM[2:], targets_N[2:]).share)


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_a_head_that_is_deaf_to_its_input_keeps_nothing(weight: float) -> None:
    """All rows of W alike move no probability."""
    head = Sigmoid()
    with torch.no_grad():
        head.weight_VM.fill_(weight)
    found = function_survival(head, random(N, M), torch.arange(N))
    assert (found.rank, found.suppressed) == (0, pytest.approx(1.0, abs=1e-6))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_gated_heads_own_matrix_at_each_token_is_solved_in_one_step(factor: float) -> None:
    """Its Jacobian is A times that of silu(C h) * (B h), which the preconditioner knows."""
    head = build(config.Wide(gated=True, factor=factor))
    assert function_survival(head, *tokens(head)).iterations_N.tolist() == [1] * N
