"""Gradient survival against singular value decompositions in float64."""

# N tokens, V vocabulary, M width, D columns of a matrix, R its rank

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import isoloss.probe.survival
from isoloss.model.loss import token_gradients
from isoloss.probe.survival import (
    Survival,
    backprop_cosine,
    factor,
    gram,
    kept,
)

torch.set_num_threads(1)

V, D, N = 600, 16, 40


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(condition: float, rank: int = D, rows: int = V) -> Tensor:
    """A float32 matrix with log-spaced singular values."""
    left, _ = torch.linalg.qr(random(rows, rank, seed=1))
    right, _ = torch.linalg.qr(random(D, rank, seed=2))
    return (left * torch.logspace(0, -math.log10(condition), rank, dtype=torch.float64) @ right.T).float()


def logit_gradients(weight_VD: Tensor, tokens: int = N, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens' p - y in float64, their hidden states and targets."""
    hidden_ND = scale * random(tokens, D, seed=3)
    targets_N = torch.randint(len(weight_VD), (tokens,), generator=torch.Generator().manual_seed(4))
    probability_NV = (hidden_ND @ weight_VD.double().T).softmax(-1)
    return probability_NV - torch.nn.functional.one_hot(targets_N, len(weight_VD)), hidden_ND, targets_N


def projected(gradient_NV: Tensor, weight_VD: Tensor, share: float = 1e-6) -> Tensor:
    """The squared norms of rows projected on the columns of a matrix, by its singular vectors."""
    left_VR, singular_R, _ = torch.linalg.svd(weight_VD.double(), full_matrices=False)
    return (gradient_NV @ left_VR[:, singular_R > share * singular_R[0]]).square().sum(-1)


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


# --- the part that survives


@pytest.mark.parametrize("condition", [1, 1e2, 1e3, 1e4])
def test_what_is_kept_is_the_projection_on_the_columns(condition: float) -> None:
    """The gradient is exact, or that rounded to float32; the bar of 1e-5 is on the sum over tokens."""
    weight_VD = matrix(condition)
    gradient_NV, _, _ = logit_gradients(weight_VD)
    exact_ND = gradient_NV @ weight_VD.double()
    expected_N = projected(gradient_NV, weight_VD)
    parts = factor(weight_VD)
    assert parts.rank == D
    torch.testing.assert_close(kept(exact_ND, parts), expected_N, rtol=1e-7, atol=0)
    rounded_N = kept(exact_ND.float(), parts)
    assert rounded_N.dtype == torch.float64
    assert float(rounded_N.sum()) == pytest.approx(float(expected_N.sum()), rel=1e-5)


@pytest.mark.parametrize("condition", [1, 1e2, 1e3])
def test_gradients_computed_in_float32_suffice(condition: float) -> None:
    weight_VD = matrix(condition) * V**0.5
    gradient_NV, hidden_ND, targets_N = logit_gradients(weight_VD)
    found = token_gradients(hidden_ND.float(), weight_VD, targets_N)
    survival = Survival(kept(found.gradient_ND, factor(weight_VD)), found.total_N, D, V)
    expected = float(projected(gradient_NV, weight_VD).sum() / gradient_NV.square().sum())
    assert survival.share == pytest.approx(expected, rel=1e-5)


def test_a_gram_matrix_in_float32_would_not_do() -> None:
    """Why it is in float64: at condition 1e4, float32 has lost directions that hold much of what is kept."""
    weight_VD = matrix(1e4)
    gradient_NV, _, _ = logit_gradients(weight_VD)
    squared_D, vectors_DD = torch.linalg.eigh(weight_VD.T @ weight_VD)
    sure_D = squared_D > D * torch.finfo(torch.float32).eps * squared_D[-1]
    in_float32_N = ((gradient_NV.float() @ weight_VD) @ vectors_DD[:, sure_D]).square() / squared_D[sure_D]
    expected = float(projected(gradient_NV, weight_VD).sum())
    assert abs(float(in_float32_N.sum()) / expected - 1) > 0.1
    assert float(kept(gradient_NV @ weight_VD.double(), factor(weight_VD)).sum()) == pytest.approx(expected, rel=1e-7)


def test_directions_without_size_keep_nothing_though_a_qr_decomposition_says_so() -> None:
    """Unpivoted QR of a matrix of rank D/2 gives D columns: half of them point anywhere, and double what is kept."""
    weight_VD = matrix(6, rank=D // 2, rows=2000)
    gradient_NV, _, _ = logit_gradients(weight_VD, tokens=400)
    parts = factor(weight_VD)
    expected = float(projected(gradient_NV, weight_VD).sum())
    assert parts.rank == D // 2
    assert float(kept(gradient_NV @ weight_VD.double(), parts).sum()) == pytest.approx(expected, rel=1e-5)
    by_qr = float((gradient_NV @ torch.linalg.qr(weight_VD.double())[0]).square().sum())
    assert by_qr / expected == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize(("dtype", "smallest"), [(torch.float32, 2.0**-22), (torch.float64, D**0.5 * 2.0**-26)])
def test_what_counts_as_a_direction_is_stated(dtype: torch.dtype, smallest: float) -> None:
    """4 x 2^-24 of the largest where float32 rounds, sqrt(D 2^-52) where only the float64 Gram matrix does."""
    for ratio, rank in ((0.99 * smallest, D - 1), (1.01 * smallest, D)):
        singular_D = torch.ones(D, dtype=dtype)
        singular_D[3] = ratio
        assert factor(torch.cat([torch.diag(singular_D), torch.zeros(5, D, dtype=dtype)])).rank == rank


def test_the_factors_parts_are_those_of_the_svd() -> None:
    weight_VD = matrix(1e2)
    _, singular_D, right_DD = torch.linalg.svd(weight_VD.double(), full_matrices=False)
    parts = factor(weight_VD)
    torch.testing.assert_close(parts.singular_R, singular_D, rtol=1e-10, atol=0)
    torch.testing.assert_close((parts.vectors_DR.T @ right_DD.T).abs(), torch.eye(D).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(parts.gram_DD, weight_VD.double().T @ weight_VD.double(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_centring_takes_the_mean_row_away(offset: float) -> None:
    """With rows 30 times as far from 0 as from each other, what is left keeps its digits."""
    weight_VD = (random(V, D, seed=1) + offset * random(D, seed=2)).float()
    gradient_NV, _, _ = logit_gradients(weight_VD, scale=0.1)
    centred_VD = weight_VD.double() - weight_VD.double().mean(0)
    expected_N = projected(gradient_NV, centred_VD)
    found_N = kept(gradient_NV @ weight_VD.double(), factor(weight_VD, centred=True))
    torch.testing.assert_close(found_N, expected_N, rtol=1e-9, atol=0)
    uncentred_N = projected(gradient_NV, weight_VD)
    assert relative(uncentred_N, expected_N) > 1e-4  # that they differ is why both exist


def test_the_product_of_two_matrices_keeps_what_its_outer_one_does() -> None:
    """For W = A B, B of full row rank, col(A) = col(A B): the gradient at the input of A tells the same."""
    outer_VR, inner_RD = random(V, 5, seed=5).float(), random(5, D, seed=6).float()
    product_VD = outer_VR.double() @ inner_RD.double()
    gradient_NV, _, _ = logit_gradients(product_VD)
    by_outer_N = kept(gradient_NV @ outer_VR.double(), factor(outer_VR))
    torch.testing.assert_close(by_outer_N, projected(gradient_NV, outer_VR), rtol=1e-10, atol=0)
    parts = factor(product_VD.float())
    assert parts.rank == 5
    torch.testing.assert_close(kept(gradient_NV @ product_VD, parts), by_outer_N, rtol=1e-5, atol=0)


def test_learnt_tokens_survive_as_by_the_definition() -> None:
    """1 - p_y from about 0.1 to 1e-13, the definition in extended precision."""
    weight_VD = matrix(3) * V**0.5
    targets_N = torch.arange(8)
    direction_ND = weight_VD[targets_N] / weight_VD[targets_N].norm(dim=-1, keepdim=True) ** 2
    hidden_ND = direction_ND * torch.linspace(20, 130, 8)[:, None]
    logits_NV = hidden_ND.numpy().astype(np.longdouble) @ weight_VD.numpy().astype(np.longdouble).T
    others_NV = np.exp(logits_NV - logits_NV[np.arange(8), targets_N][:, None])
    others_NV[np.arange(8), targets_N] = 0
    others_NV /= 1 + others_NV.sum(-1, keepdims=True)
    rest_N = others_NV.sum(-1)
    assert rest_N.max() > 0.01
    assert rest_N.min() < 1e-12
    others_NV[np.arange(8), targets_N] = -rest_N
    expected_N = projected(torch.from_numpy((others_NV / rest_N[:, None]).astype(float)), weight_VD).numpy()
    expected_N = expected_N / ((others_NV / rest_N[:, None]) ** 2).sum(-1).astype(float)
    found = token_gradients(hidden_ND, weight_VD, targets_N)
    found_N = kept(found.gradient_ND, factor(weight_VD)) / found.total_N
    np.testing.assert_allclose(found_N.numpy(), expected_N, rtol=1e-4)


def test_a_random_head_keeps_rank_over_classes() -> None:
    """Of uniform p and random W, the mean share is D / V: the gain is 1, and sqrt(1 - D / V) is suppressed."""
    weight_VD = 1e-3 * random(2000, 50, seed=9).float()
    gradient_NV = torch.full((2000, 2000), 1 / 2000, dtype=torch.float64) - torch.eye(2000, dtype=torch.float64)
    kept_N = kept(gradient_NV @ weight_VD.double(), factor(weight_VD))
    survival = Survival(kept_N, gradient_NV.square().sum(-1), 50, 2000)
    assert survival.gain == pytest.approx(1, rel=1e-3)  # all targets once: only the constant direction is missing
    assert survival.suppressed == pytest.approx(math.sqrt(1 - 50 / 2000), rel=1e-4)


# --- cosines


def cosine(left_NV: Tensor, right_NV: Tensor) -> float:
    return float((left_NV * right_NV).sum() / (left_NV.norm() * right_NV.norm()))


def test_cosines_are_those_of_the_matrices() -> None:
    weight_VD = matrix(30) * V**0.5
    gradient_NV, _, _ = logit_gradients(weight_VD)
    exact_VD, total_N = weight_VD.double(), gradient_NV.square().sum(-1)
    gradient_ND = gradient_NV @ exact_VD
    parts = factor(weight_VD)
    left_VD, _, _ = torch.linalg.svd(exact_VD, full_matrices=False)
    survival = Survival(kept(gradient_ND, parts), total_N, D, V)
    assert survival.cosine == pytest.approx(cosine(gradient_NV, gradient_NV @ left_VD @ left_VD.T), rel=1e-9)
    through_hidden_NV = gradient_NV @ exact_VD @ exact_VD.T
    assert backprop_cosine(gradient_ND, total_N, parts.gram_DD) == pytest.approx(
        cosine(gradient_NV, through_hidden_NV), rel=1e-9
    )


# --- figures of a survival


def test_figures_of_two_tokens() -> None:
    """Kept 0.36 of 1 and 0.04 of 1: together 0.2, single tokens suppress 0.8 and sqrt(0.96)."""
    survival = Survival(torch.tensor([0.36, 0.04]), torch.tensor([1.0, 1.0]), rank=2, classes=50)
    assert survival.share == pytest.approx(0.2)
    assert survival.suppressed == pytest.approx(math.sqrt(0.8))
    assert survival.cosine == pytest.approx(math.sqrt(0.2))
    assert survival.gain == pytest.approx(5)
    assert survival.suppressed_N.tolist() == pytest.approx([0.8, math.sqrt(0.96)])
    assert survival.mean == pytest.approx((0.8 + math.sqrt(0.96)) / 2)
    assert survival.quantiles((0.0, 0.5)) == pytest.approx([0.8, (0.8 + math.sqrt(0.96)) / 2])


def test_tokens_without_a_gradient_count_for_nothing() -> None:
    tiny = torch.finfo(torch.float32).tiny
    kept_N, total_N = torch.tensor([0.36, 0.0, tiny / 4]), torch.tensor([1.0, 0.0, tiny / 2])
    survival = Survival(kept_N, total_N, 2, 50)
    assert survival.share == pytest.approx(0.36)
    assert survival.suppressed_N.isnan().tolist() == [False, True, True]
    assert [survival.mean, *survival.quantiles((0.1, 0.9))] == pytest.approx([0.8] * 3)
    nothing = Survival(torch.zeros(2), torch.zeros(2), 2, 50)
    figures = (
        nothing.share,
        nothing.suppressed,
        nothing.cosine,
        nothing.gain,
        nothing.mean,
        *nothing.quantiles((0.5,)),
    )
    assert all(math.isnan(figure) for figure in figures)


def test_groups_of_tokens_are_survivals_of_their_own() -> None:
    survival = Survival(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([1.0, 1.0, 2.0]), 2, 50)
    groups = survival.by_group(torch.tensor([7, 2, 7]))
    assert list(groups) == [2, 7]
    assert groups[7].share == pytest.approx(0.5 / 3)
    assert (groups[2].share, groups[2].gain) == pytest.approx((0.1, 2.5))


def test_a_share_above_one_stays_visible() -> None:
    """As of gradients and a matrix that do not belong together."""
    survival = Survival(torch.tensor([1.5]), torch.tensor([1.0]), 2, 50)
    assert survival.share == 1.5
    assert survival.suppressed == 0.0
    assert survival.suppressed_N.tolist() == [0.0]


def test_what_is_not_finite_is_not_hidden() -> None:
    survival = Survival(torch.tensor([math.nan, 0.1]), torch.tensor([1.0, 1.0]), 2, 50)
    assert math.isnan(survival.share)
    assert math.isnan(survival.suppressed)
    with pytest.raises(ValueError, match="not finite"):
        factor(torch.full((5, 2), math.inf))


def test_a_matrix_of_zeros_keeps_nothing() -> None:
    parts = factor(torch.zeros(9, 3))
    survival = Survival(kept(torch.zeros(4, 3), parts), torch.ones(4), parts.rank, 9)
    assert (parts.rank, survival.share, survival.suppressed) == (0, 0.0, 1.0)
    assert math.isnan(survival.gain)


# --- memory and precision


class Allocations(TorchDispatchMode):
    """Notes the shape and type of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[torch.Size, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, Tensor):
                self.found.append((part.shape, part.dtype))
        return result


@pytest.mark.parametrize("centred", [False, True])
def test_nothing_as_large_as_the_vocabulary_by_tokens_is_made(centred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor V x V, nor W in float64: that is read in blocks, here of 50 rows."""
    monkeypatch.setattr(isoloss.probe.survival, "BLOCK_BYTES", 50 * 8 * D)
    weight_VD, gradient_ND = random(V, D).float(), random(500, D).float()
    with Allocations() as made:
        parts = factor(weight_VD, centred)
        kept(gradient_ND, parts)
    assert len(made.found) > 20
    assert all(shape.numel() <= V * D for shape, _ in made.found)
    assert max(shape.numel() for shape, dtype in made.found if dtype == torch.float64) == 50 * D


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_VD, gradient_ND = random(V, D).float(), random(N, D).float()
    whole, whole_N = gram(weight_VD, centred=True), kept(gradient_ND, factor(weight_VD))
    monkeypatch.setattr(isoloss.probe.survival, "BLOCK_BYTES", 7 * 8 * D)  # 600 = 85 x 7 + 5
    torch.testing.assert_close(gram(weight_VD, centred=True), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kept(gradient_ND, factor(weight_VD)), whole_N, rtol=1e-10, atol=0)


def test_autocast_changes_nothing() -> None:
    weight_VD, gradient_ND = random(V, D).float().requires_grad_(), random(N, D).float()
    expected_N = kept(gradient_ND, factor(weight_VD))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found_N = kept(gradient_ND, factor(weight_VD))
    assert torch.equal(found_N, expected_N)
    assert not found_N.requires_grad


def test_weights_of_few_digits_are_measured_as_they_are() -> None:
    weight_VD = matrix(1e2).bfloat16()
    gradient_NV, _, _ = logit_gradients(weight_VD)
    parts = factor(weight_VD)
    assert parts.rank == D
    expected_N = projected(gradient_NV, weight_VD)
    torch.testing.assert_close(kept(gradient_NV @ weight_VD.double(), parts), expected_N, rtol=1e-9, atol=0)
