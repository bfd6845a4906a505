"""The sparse heads under the contract of ``head_contract.py``, and what sets them apart from a softmax."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from head_contract import HeadContract, Weights
from spamlang_training import final_loss
from torch import Tensor, nn

from isoloss import Decoder, Entmax, Linear, Sparsemax
from isoloss.model.heads import build_head
from isoloss.model.heads.sparse import SparseHead, entmax
from isoloss.tasks.base import UNSCORED

SMOOTHING = 1e-4


def by_bisection(logits_NV: np.ndarray, alpha: float) -> np.ndarray:
    """Solve sum over v of ((alpha - 1) z_v - tau)_+^(1 / (alpha - 1)) = 1 for tau (Peters et al. 2019, equation 10)."""
    scaled_NV = (alpha - 1) * (logits_NV - logits_NV.max(-1, keepdims=True))

    def probabilities(tau_N1: np.ndarray) -> np.ndarray:
        return np.maximum(scaled_NV - tau_N1, 0) ** (1 / (alpha - 1))

    low_N1, high_N1 = np.full_like(scaled_NV[:, :1], -1), np.zeros_like(scaled_NV[:, :1])
    for _ in range(64):  # as many as a longdouble has binary digits
        middle_N1 = (low_N1 + high_N1) / 2
        above_N1 = probabilities(middle_N1).sum(-1, keepdims=True) >= 1
        low_N1, high_N1 = np.where(above_N1, middle_N1, low_N1), np.where(above_N1, high_N1, middle_N1)
    return probabilities(low_N1)


def by_sorting(logits_NV: np.ndarray) -> np.ndarray:
    """Project onto the simplex (Martins & Astudillo 2016, algorithm 1)."""
    out_NV = np.zeros_like(logits_NV)
    for token, logits_V in enumerate(logits_NV):
        sorted_V = np.sort(logits_V)[::-1]
        size = max(k for k in range(1, len(sorted_V) + 1) if 1 + k * sorted_V[k - 1] > sorted_V[:k].sum())
        out_NV[token] = np.maximum(logits_V - (sorted_V[:size].sum() - 1) / size, 0)
    return out_NV


class SparseContract(HeadContract):
    parameters_of_11_by_8 = 88
    alpha: float

    def naive_probabilities(self, logits_NV: np.ndarray) -> np.ndarray:
        return by_bisection(logits_NV, self.alpha)

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        probability_NV = self.naive_probabilities(hidden_NM @ weights["weight_VM"].T)
        return np.log((1 - SMOOTHING) * probability_NV + SMOOTHING / probability_NV.shape[1])

    def naive_token_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        """(sum p^alpha - 1) / (alpha (alpha - 1)) is Omega(p): the loss is Omega*(z) + Omega(y) - z y."""
        logits_NV = hidden_NM @ weights["weight_VM"].T
        probability_NV = self.naive_probabilities(logits_NV)
        omega_N = ((probability_NV**self.alpha).sum(-1) - 1) / (self.alpha * (self.alpha - 1))
        conjugate_N = (probability_NV * logits_NV).sum(-1) - omega_N
        return conjugate_N - logits_NV[np.arange(len(logits_NV)), targets_N.numpy()]

    def test_initial_logits_have_the_linear_heads_scale(self) -> None:
        """The log-probabilities' spread is not the logits'; the matrix is drawn as the linear head's."""
        for config in (self.config, Linear()):
            head = build_head(config, 11, Decoder(width=8, depth=1, initial_std=0.03), nn.Embedding(12, 8))
            assert head.initial_scale("weight_VM") == 0.03

    def test_the_losss_gradient_by_the_logits_is_p_less_y(self) -> None:
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens()
        head.training_loss(hidden_NM, targets_N).backward()
        exact_NM = hidden_NM.numpy().astype(np.longdouble)
        difference_NV = self.naive_probabilities(exact_NM @ self.weights(head, embedding)["weight_VM"].T)
        difference_NV[np.arange(6), targets_N.numpy()] -= 1
        np.testing.assert_allclose(head.weight_VM.grad, (difference_NV.T @ exact_NM).astype(float), rtol=0, atol=2e-6)

    def test_gradients_by_the_logits_are_those_of_training(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        targets_N[3] = UNSCORED
        hidden_NM.requires_grad_()
        head.training_loss(hidden_NM, targets_N).backward()
        found = head.logit_gradients(hidden_NM, targets_N)
        torch.testing.assert_close(found.gradient_ND, hidden_NM.grad, rtol=1e-5, atol=1e-6)
        assert torch.equal(found.loss_N, head.token_loss(hidden_NM, targets_N))
        probability_NV = self.naive_probabilities(head.logits(hidden_NM).detach().numpy().astype(np.longdouble))
        one_hot_NV = np.eye(self.vocab_size)[targets_N.clamp(min=0).numpy()]
        expected_N = ((probability_NV - one_hot_NV) ** 2).sum(-1).astype(float)
        expected_N[3] = 0
        np.testing.assert_allclose(found.total_N.detach(), expected_N, rtol=1e-5, atol=1e-6)

    def test_it_learns_spamlang(self) -> None:
        assert final_loss(self.config) < 0.02 * math.log(32)


class TestSparsemax(SparseContract):
    config = Sparsemax()
    alpha = 2.0

    def naive_probabilities(self, logits_NV: np.ndarray) -> np.ndarray:
        return by_sorting(logits_NV)


class TestEntmax(SparseContract):
    config = Entmax()
    alpha = 1.5


def head_of_logits(config: Sparsemax | Entmax, logits_NV: Tensor) -> tuple[SparseHead, Tensor]:
    """Return a head and hidden states of which these are the logits: W is the identity."""
    count = logits_NV.shape[1]
    head = SparseHead(config, count, Decoder(width=count, depth=1, attention_heads=1), nn.Embedding(1, 1))
    with torch.no_grad():
        head.weight_VM.copy_(torch.eye(count))
    return head, logits_NV


@pytest.mark.parametrize("config", [Sparsemax(), Entmax(), Entmax(alpha=1.25)], ids=lambda config: config.label)
def test_a_symbol_without_probability_costs_ln_v_over_smoothing(config: Sparsemax | Entmax) -> None:
    head, hidden_NM = head_of_logits(config, torch.tensor([[1e4, -1e4, 0.0, -5e3]] * 2))
    loss_N = head.loss(hidden_NM, torch.tensor([0, 1]))
    assert loss_N.tolist() == pytest.approx([0.75 * SMOOTHING, math.log(4 / SMOOTHING)], rel=1e-3)
    # The trained loss of a wrong symbol is its distance below the winner, which has all probability: Omega is 0.
    assert head.token_loss(hidden_NM, torch.tensor([0, 1])).tolist() == pytest.approx([0.0, 2e4])


def test_published_values_of_two_logits() -> None:
    """For logits (t, 0) sparsemax gives max(0, min(1, (1 + t) / 2)) to the first (Martins & Astudillo 2016, figure 1).

    1.5-entmax solves p^(1/2) - (1 - p)^(1/2) = t / 2, which for t = 1 is p = (1 + sqrt(7) / 4) / 2.
    """
    logits_NV = torch.tensor([[-2.0, 0.0], [-0.5, 0.0], [0.0, 0.0], [0.5, 0.0], [2.0, 0.0]])
    shifted_NV = logits_NV - logits_NV.amax(-1, keepdim=True)
    assert entmax(shifted_NV, 2.0)[:, 0].tolist() == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    expected = (1 + 7**0.5 / 4) / 2
    assert entmax(torch.tensor([[0.0, -1.0]]), 1.5)[0, 0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("spread", [1e-3, 0.3, 1e4])
def test_entmax_is_exact_for_many_symbols_and_any_spread(alpha: float, spread: float) -> None:
    """Also where far more symbols have probability than are sorted at first."""
    generator = torch.Generator().manual_seed(0)
    logits_NV = torch.randn(2, 1024, generator=generator) * spread
    logits_NV -= logits_NV.amax(-1, keepdim=True)
    expected_NV = by_bisection(logits_NV.numpy().astype(np.longdouble), alpha).astype(float)
    if spread == 1e-3:
        assert (expected_NV > 0).sum(-1).min() > 512
    np.testing.assert_allclose(entmax(logits_NV, alpha), expected_NV, rtol=0, atol=2e-6 * expected_NV.max())


@pytest.mark.parametrize("config", [Sparsemax(), Entmax(), Entmax(alpha=1.25)], ids=lambda config: config.label)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_logits_that_are_not_finite_end_in_a_loss_that_is_not(config: Sparsemax | Entmax, value: float) -> None:
    """The trial must end ``nonfinite``, not with an error; the other tokens' losses stay as they are."""
    head, hidden_NM = head_of_logits(config, torch.tensor([[1.0, 0.0, -1.0, 0.5], [1.0, -3e38, value, 0.5]]))
    targets_N = torch.tensor([1, 1])
    for loss in (head.loss, head.token_loss):
        loss_N = loss(hidden_NM, targets_N)
        assert loss_N[0] == loss(hidden_NM[:1], targets_N[:1])
        assert not bool(loss_N[1].isfinite())
    total = head.training_loss(hidden_NM.requires_grad_(), targets_N)
    total.backward()
    assert not bool(total.isfinite())
    assert not bool(head.weight_VM.grad.isfinite().all())


@pytest.mark.parametrize("config", [Sparsemax(), Entmax(), Entmax(alpha=1.25)], ids=lambda config: config.label)
def test_autocast_coarsens_the_logits_only(config: Sparsemax | Entmax) -> None:
    """The losses of logits that bfloat16 holds exactly keep float32's digits."""
    head, hidden_NM = head_of_logits(config, torch.tensor([[0.5, -0.25, 1.0, 0.0], [96.0, 0.0, 95.5, 95.0]]))
    targets_N = torch.tensor([0, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = [loss(hidden_NM, targets_N) for loss in (head.loss, head.token_loss)]
    exact = [loss(hidden_NM, targets_N) for loss in (head.loss, head.token_loss)]
    for coarse_N, exact_N in zip(coarse, exact, strict=True):
        assert coarse_N.dtype == torch.float32
        torch.testing.assert_close(coarse_N, exact_N, rtol=1e-6, atol=1e-6)
