"""Spectra against singular value decompositions in float64, and closed forms."""

# N rows, V vocabulary, M width, D columns, R rank

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from isoloss.probe.spectrum import Spectrum, anisotropy, log_probability_rank, spectrum

torch.set_num_threads(1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix(singular_R: Tensor, rows: int, columns: int) -> Tensor:
    """A matrix of these singular values."""
    left, _ = torch.linalg.qr(random(rows, len(singular_R), seed=1).double())
    right, _ = torch.linalg.qr(random(columns, len(singular_R), seed=2).double())
    return left * singular_R @ right.T


# --- singular values


@pytest.mark.parametrize("shape", [(300, 20), (20, 300)])
@pytest.mark.parametrize("condition", [1, 1e2, 1e4])
def test_figures_are_those_of_the_svd(condition: float, shape: tuple[int, int]) -> None:
    weights = matrix(torch.logspace(0, -math.log10(condition), 20, dtype=torch.float64), *shape).float()
    singular_R = torch.linalg.svdvals(weights.double())
    share_R = singular_R / singular_R.sum()
    found = spectrum(weights)
    torch.testing.assert_close(found.singular_R, singular_R, rtol=1e-7, atol=0)
    assert found.rank == 20
    assert found.entropy == pytest.approx(float(-(share_R * share_R.log()).sum()), rel=1e-8)
    assert found.condition == pytest.approx(float(singular_R[0] / singular_R[-1]), rel=1e-7)
    assert found.top_share == pytest.approx(float(share_R[0]), rel=1e-8)


@pytest.mark.parametrize("shape", [(300, 20), (20, 300)])
def test_centring_takes_the_mean_row_away(shape: tuple[int, int]) -> None:
    weights = random(*shape) + 5 * random(shape[1], seed=1)
    expected_R = torch.linalg.svdvals(weights.double() - weights.double().mean(0))
    found = spectrum(weights, centred=True)
    assert found.rank == min(20, shape[0] - 1)
    torch.testing.assert_close(found.singular_R, expected_R[: found.rank], rtol=1e-9, atol=0)


def test_equal_singular_values_use_every_direction_alike() -> None:
    found = spectrum(torch.linalg.qr(random(50, 8).double())[0])
    assert found.rank == 8
    assert [found.effective_rank, found.entropy] == pytest.approx([8, math.log(8)])
    assert [found.condition, found.top_share] == pytest.approx([1, 1 / 8])


def test_three_singular_values_by_hand() -> None:
    """3, 2 and 1: shares 1/2, 1/3 and 1/6."""
    found = Spectrum(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    assert found.entropy == pytest.approx(math.log(2) / 2 + math.log(3) / 3 + math.log(6) / 6)
    assert found.effective_rank == pytest.approx(2**0.5 * 3 ** (1 / 3) * 6 ** (1 / 6))
    assert [found.top_share, found.condition] == pytest.approx([0.5, 3])


def test_rounding_to_float32_makes_no_rank() -> None:
    low = matrix(torch.linspace(2, 1, 10, dtype=torch.float64), 300, 20)
    assert torch.linalg.matrix_rank(low.float().double()) == 20
    assert spectrum(low.float()).rank == 10


def test_what_has_no_spectrum_says_so() -> None:
    nothing = spectrum(torch.zeros(9, 3))
    assert nothing.rank == 0
    figures = (nothing.entropy, nothing.effective_rank, nothing.condition, nothing.top_share)
    assert all(math.isnan(figure) for figure in figures)
    with pytest.raises(ValueError, match="not finite"):
        spectrum(torch.full((9, 3), math.nan))


# --- anisotropy


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_anisotropy_is_the_mean_cosine_of_pairs(offset: float) -> None:
    hidden_NM = random(40, 12) + offset
    cosine_NN = F.cosine_similarity(hidden_NM.double()[:, None], hidden_NM.double()[None], dim=-1)
    expected = float(cosine_NN.sum() - cosine_NN.trace()) / (40 * 39)
    assert anisotropy(hidden_NM) == pytest.approx(expected, rel=1e-9)


def test_anisotropy_of_known_directions() -> None:
    row_M = random(1, 6)
    assert anisotropy(row_M * torch.tensor([[1.0], [2.0], [5.0]])) == pytest.approx(1)
    assert anisotropy(torch.eye(5)) == pytest.approx(0, abs=1e-15)
    assert anisotropy(torch.cat([row_M, -3 * row_M])) == pytest.approx(-1)
    assert math.isnan(anisotropy(torch.zeros(3, 4)))
    with pytest.raises(ValueError, match="two or more, not 1"):
        anisotropy(row_M)


# --- log-probabilities


def materialised_rank(hidden_ND: Tensor, weight_VD: Tensor) -> int:
    log_probability_NV = F.log_softmax(hidden_ND.double() @ weight_VD.double().T, dim=-1)
    return int(torch.linalg.matrix_rank(log_probability_NV, rtol=1e-9))


@pytest.mark.parametrize("scale", [0.02, 1.0])
@pytest.mark.parametrize("tokens", [9, 100])
def test_a_linear_heads_log_probabilities_have_one_rank_more_than_it(tokens: int, scale: float) -> None:
    hidden_ND, weight_VD = random(tokens, 16), scale * random(200, 16, seed=1)
    assert log_probability_rank(hidden_ND, weight_VD) == materialised_rank(hidden_ND, weight_VD) == min(tokens, 17)


def test_a_low_rank_adds_one_too() -> None:
    inner_D8, outer_8D = random(200, 8, seed=1).double(), random(8, 16, seed=2).double()
    weight_VD, hidden_ND = (inner_D8 @ outer_8D).float(), random(100, 16)
    assert materialised_rank(hidden_ND, inner_D8 @ outer_8D) == 9
    assert log_probability_rank(hidden_ND, weight_VD) == 9
    assert log_probability_rank(random(100, 8), inner_D8.float()) == 9


def test_ill_conditioned_factors_do_not_hide_rank() -> None:
    """Condition 1e3 of both, whose product of 1e6 float32 log-probabilities could not show."""
    spread = torch.logspace(0, -3, 16, dtype=torch.float64)
    hidden_ND, weight_VD = matrix(100 * spread, 100, 16).float(), matrix(10 * spread, 200, 16).float()
    assert log_probability_rank(hidden_ND, weight_VD) == 17


def test_equal_distributions_have_rank_one() -> None:
    weight_VD = random(200, 16, seed=1)
    assert log_probability_rank(random(1, 16).expand(50, 16), weight_VD) == 1
    assert log_probability_rank(random(50, 16), torch.zeros(200, 16)) == 1


def test_pointwise_functions_break_the_bound() -> None:
    """Kanai et al. 2018: of sigsoftmax the log-probabilities have no bound in D; spectra show it without N x V SVDs."""
    logits_NV = random(60, 4) @ random(200, 4, seed=1).T
    linear_NV, sigmoid_NV = logits_NV.log_softmax(-1), (logits_NV + F.logsigmoid(logits_NV)).log_softmax(-1)
    assert spectrum(linear_NV).rank == 5
    assert spectrum(sigmoid_NV.double()).rank > 15
