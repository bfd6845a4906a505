"""Heads whose logits are a pointwise function of one matrix product, under the contract of ``head_contract.py``."""

# N tokens, V vocabulary, M width, K pieces

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from head_contract import HeadContract, Weights, check_autocast
from numpy.polynomial.hermite_e import hermegauss
from spamlang_training import final_loss
from torch import nn

from isoloss import Decoder, Monotone, Sigsoftmax, Spherical, Wide
from isoloss.model.heads import build_head
from isoloss.model.heads.base import Head
from isoloss.model.heads.monotone import MonotoneHead
from isoloss.model.heads.wide import SILU_POWER

HEADS = {
    "sigsoftmax": Sigsoftmax(),
    "monotone": Monotone(),
    "spherical": Spherical(),
    "taylor": Spherical(taylor=True),
    "wide": Wide(),
    "gated": Wide(gated=True),
}


def mean_of_normal(values: Any) -> float:
    """Return E[values(x)] for x of N(0, 1), by quadrature."""
    x, weight = hermegauss(150)
    return float((weight * values(x)).sum() / weight.sum())


def normalised(logits_NV: np.ndarray) -> np.ndarray:
    logits_NV = logits_NV - logits_NV.max(-1, keepdims=True)
    return logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))


class TestSigsoftmax(HeadContract):
    config = Sigsoftmax()
    parameters_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        z_NV = hidden_NM @ weights["weight_VM"].T
        power_NV = np.exp(z_NV) / (1 + np.exp(-z_NV))
        return np.log(power_NV / power_NV.sum(-1, keepdims=True))

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_logits_of_ten_thousand_are_z_above_and_2z_below(self, sign: float) -> None:
        head, _ = self.head(2)
        with torch.no_grad():
            head.weight_VM.copy_(torch.tensor([[1.0], [0.5]]).expand(2, 8))
            logits_NV = head.logits(torch.full((1, 8), sign * 1e4 / 8))
        expected = [[1e4, 5e3]] if sign > 0 else [[-2e4, -1e4]]
        torch.testing.assert_close(logits_NV, torch.tensor(expected))


class TestMonotone(HeadContract):
    config = Monotone(pieces=5, reach=1.5)
    parameters_of_11_by_8 = 88 + 5
    multiplications_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        """f(z) is the integral of the slope from 0 to z: each piece's slope times how much of it lies between."""
        pieces, reach = self.config.pieces, self.config.reach
        slope_K = np.log(1 + np.exp(weights["slopes_K"]))
        ends = [-np.inf, *np.linspace(-reach, reach, pieces + 1)[1:-1].astype(np.longdouble), np.inf]
        z_NV = hidden_NM @ weights["weight_VM"].T
        low_K, high_K = np.array(ends[:-1]), np.array(ends[1:])
        crossed_NVK = np.clip(z_NV[:, :, None], low_K, high_K) - np.clip(np.longdouble(0), low_K, high_K)
        return normalised((crossed_NVK * slope_K).sum(-1))


class TestSpherical(HeadContract):
    config = Spherical(epsilon=0.05)
    parameters_of_11_by_8 = 88

    def naive_powers(self, z_NV: np.ndarray) -> np.ndarray:
        return z_NV**2 + np.longdouble(self.config.epsilon)

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        power_NV = self.naive_powers(hidden_NM @ weights["weight_VM"].T)
        return np.log(power_NV / power_NV.sum(-1, keepdims=True))

    @pytest.mark.parametrize("largest", [1e2, 1e4])
    def test_losses_and_gradients_are_right_at_extreme_logits(self, largest: float) -> None:
        """Extreme are here z alone: they move a loss by the logarithm of their square."""
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens()
        hidden_NM *= largest
        hidden_NM.requires_grad_()
        loss_N, total = head.loss(hidden_NM, targets_N), head.training_loss(hidden_NM, targets_N)
        total.backward()
        weights, exact_NM = self.weights(head, embedding), hidden_NM.detach().numpy().astype(np.longdouble)
        assert np.abs(exact_NM @ weights["weight_VM"].T).max() > largest
        expected_N = self.naive_losses(weights, exact_NM, targets_N).astype(float)
        np.testing.assert_allclose(loss_N.numpy(), expected_N, rtol=1e-5, atol=5e-6)
        np.testing.assert_allclose(total.detach().numpy(), expected_N.sum(), rtol=1e-5)
        for gradient in (hidden_NM.grad, *(parameter.grad for parameter in head.parameters())):
            assert bool(gradient.isfinite().all())

    @pytest.mark.parametrize("width", [32, 128])
    def test_initial_logits_have_the_linear_heads_scale(self, width: int) -> None:
        """Not theirs: z has the standard deviation sqrt(epsilon) at any width, and the loss is near ln V."""
        hidden_NM = torch.randn(256, width, generator=torch.Generator().manual_seed(1))
        head = initialised(self.config, vocab_size=997, width=width)
        with torch.no_grad():
            z_NV = hidden_NM @ head.last_matrix().T
            loss = -float(head.log_probabilities(hidden_NM).mean())
        assert float(z_NV.std()) == pytest.approx(math.sqrt(0.05), rel=0.05)
        excess = math.log(2) - mean_of_normal(lambda x: np.log(1 + x**2))
        assert excess == pytest.approx(0.16, abs=0.005)
        assert loss == pytest.approx(math.log(997) + excess, abs=0.02)


class TestTaylor(TestSpherical):
    config = Spherical(taylor=True)

    def naive_powers(self, z_NV: np.ndarray) -> np.ndarray:
        return 1 + z_NV + z_NV**2 / 2

    test_initial_logits_have_the_linear_heads_scale = HeadContract.test_initial_logits_have_the_linear_heads_scale

    def test_no_logit_is_below_minus_ln_2(self) -> None:
        head, _ = self.head(2)
        with torch.no_grad():
            head.weight_VM.copy_(torch.tensor([[1.0], [0.0]]).expand(2, 8) / 8)
            logits_V = torch.stack([head.logits(torch.full((1, 8), z))[0, 0] for z in (-1.0, -0.9, -1.1, 0.0)])
        torch.testing.assert_close(logits_V, torch.tensor([0.5, 0.505, 0.505, 1.0]).log())


class TestWide(HeadContract):
    config = Wide(factor=1.2)
    parameters_of_11_by_8 = 10 * 11 + 10 * 8  # 9.6 columns, rounded

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return normalised(hidden_NM @ weights["in_DM"].T @ weights["out_VD"].T)


class TestGated(HeadContract):
    config = Wide(factor=0.6, gated=True)
    parameters_of_11_by_8 = 5 * 11 + 2 * 5 * 8
    amplified = "out_VD"  # a gated input grows with the square of h

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        gate_ND = hidden_NM @ weights["gate_DM"].T
        input_ND = gate_ND / (1 + np.exp(-gate_ND)) * (hidden_NM @ weights["in_DM"].T)
        return normalised(input_ND @ weights["out_VD"].T)


def initialised(config: Any, vocab_size: int, width: int) -> Head:
    head = build_head(config, vocab_size, Decoder(width=width, depth=1), nn.Embedding(vocab_size, width))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            scale = head.initial_scale(name)
            if scale is not None:
                parameter.normal_(0.0, scale, generator=generator)
    return head


def test_the_power_of_silu_is_that_of_quadrature() -> None:
    assert pytest.approx(mean_of_normal(lambda x: (x / (1 + np.exp(-x))) ** 2), abs=1e-6) == SILU_POWER


@pytest.mark.parametrize("name", HEADS)
def test_logits_are_a_function_of_the_last_product(name: str) -> None:
    """Sorting all symbols of all tokens by that product (or its distance from the function's minimum) sorts logits."""
    head = initialised(HEADS[name], vocab_size=61, width=8)
    hidden_NM = 5 * torch.randn(7, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        head.last_matrix().mul_(20)
        z_NV, logits_NV = head.last_input(hidden_NM) @ head.last_matrix().T, head.logits(hidden_NM)
    height_NV = {"spherical": z_NV.abs(), "taylor": (z_NV + 1).abs()}.get(name, z_NV)
    sorted_logits = logits_NV.flatten()[height_NV.flatten().argsort()]
    assert float(sorted_logits[-1] - sorted_logits[0]) > 1
    assert bool((sorted_logits.diff() > -1e-6).all())


@pytest.mark.parametrize("pieces", [2, 7, 64])
def test_a_monotone_function_starts_as_exactly_the_identity(pieces: int) -> None:
    head = initialised(Monotone(pieces=pieces, reach=4.0), vocab_size=61, width=8)
    assert isinstance(head, MonotoneHead)
    z_NV = 3 * torch.randn(50, 61, generator=torch.Generator().manual_seed(2))
    assert float(z_NV.abs().max()) > 8
    assert torch.equal(head.function(z_NV), z_NV)


def test_a_monotone_function_has_no_step_at_its_knots() -> None:
    head = initialised(Monotone(), vocab_size=2, width=8)
    assert isinstance(head, MonotoneHead)
    slope_K = torch.linspace(0.2, 3.0, 64)
    with torch.no_grad():
        head.slopes_K.copy_(torch.expm1(slope_K).log())
        knots_N = torch.arange(-15.5, 16.0, 0.5)
        far = torch.tensor(99.0)
        below_N, above_N = (head.function(torch.nextafter(knots_N, to)[:, None])[:, 0] for to in (-far, far))
        ends = head.function(torch.tensor([[-1000.0, 1000.0]]))[0]
    torch.testing.assert_close(above_N, below_N, rtol=1e-6, atol=1e-6)
    # Between knots f rises by slope times length; beyond the reach the outer slopes continue.
    torch.testing.assert_close(above_N.diff(), slope_K[1:-1] * 0.5, rtol=1e-4, atol=1e-5)
    assert float(ends[0]) == pytest.approx(-0.5 * float(slope_K[:32].sum()) - 0.2 * 984, rel=1e-5)
    assert float(ends[1]) == pytest.approx(0.5 * float(slope_K[32:].sum()) + 3.0 * 984, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_monotone_head_has_no_finite_loss_and_raises_nothing(value: float) -> None:
    head = initialised(Monotone(), vocab_size=5, width=8)
    hidden_NM = torch.ones(2, 8, requires_grad=True)
    with torch.no_grad():
        head.last_matrix()[3, 3] = value
    loss = head.training_loss(hidden_NM, torch.tensor([0, 3]))
    loss.backward()
    assert not math.isfinite(loss.item())


@pytest.mark.parametrize(
    ("config", "at_frame", "bound"),
    [(Spherical(epsilon=1e-4), (24 * 8 + 24 * 1e-4) / (64 + 1e-4), 24 / 8), (Spherical(taylor=True), 240 / 82, 24 / 9)],
    ids=["spherical", "taylor"],
)
def test_a_quadratic_head_cannot_tell_apart_more_symbols_than_its_rank(
    config: Spherical, at_frame: float, bound: float
) -> None:
    """One context for each of V symbols: the mean of 1 / p is at least V / rank, whatever the contexts and weights.

    Its rows divided by their diagonal, the matrix z (of Taylor softmax z + 1, of rank M + 1) has trace V, so its
    squared Frobenius norm, which the sum of 1 / p exceeds, is at least V^2 / rank. The harmonic frame, whose z is 8 on
    the diagonal and 24 x 8 in a row's squares, attains that; of z + 1 these are 9 and 24 x 9.
    """
    head = initialised(config, vocab_size=24, width=8)
    angle_VJ = 2 * math.pi / 24 * torch.outer(torch.arange(24), torch.arange(1, 5))
    frame_VM = math.sqrt(2) * torch.cat([angle_VJ.cos(), angle_VJ.sin()], dim=1)
    hidden_NM = frame_VM.clone().requires_grad_()
    with torch.no_grad():
        head.last_matrix().copy_(frame_VM)
    optimizer = torch.optim.Adam([hidden_NM, *head.parameters()], lr=0.03)
    means = []
    for _ in range(100):
        optimizer.zero_grad()
        mean = head.token_loss(hidden_NM, torch.arange(24)).exp().mean()
        mean.backward()
        means.append(mean.item())
        optimizer.step()
    assert means[0] == pytest.approx(at_frame, rel=1e-5)
    assert bound * (1 - 1e-6) <= min(means) < 1.06 * bound


@pytest.mark.parametrize("name", HEADS)
def test_under_autocast_losses_are_float32_and_near_those_without(name: str) -> None:
    check_autocast(initialised(HEADS[name], vocab_size=61, width=32), width=32)


@pytest.mark.parametrize("name", ["sigsoftmax", "monotone", "wide", "gated"])
def test_it_learns_spamlang(name: str) -> None:
    assert final_loss(HEADS[name]) < 0.02 * math.log(32)


@pytest.mark.parametrize(("name", "rank"), [("spherical", 16), ("taylor", 17)])
def test_a_quadratic_head_learns_spamlang_as_far_as_its_rank_allows(name: str, rank: int) -> None:
    """With 32 symbols at width 16 that is about ln(V / rank): 0.69 and 0.63 nats."""
    assert 0.9 * math.log(32 / rank) < final_loss(HEADS[name]) < 1.2 * math.log(32 / rank)
