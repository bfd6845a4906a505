"""Every head under the contract of ``head_contract.py``."""

from __future__ import annotations

import math

import numpy as np
import pytest
from head_contract import HeadContract, Weights
from torch import Tensor, nn

from isoloss import Decoder, Linear, LowRank
from isoloss.model.heads import build_head


def log_softmax(logits_NV: np.ndarray) -> np.ndarray:
    return logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))


class TestLinear(HeadContract):
    config = Linear()
    parameters_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ weights["weight_VM"].T)


class TestTiedLinear(HeadContract):
    config = Linear(tied=True)
    parameters_of_11_by_8 = 0
    multiplications_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        symbols_VM = weights["embedding"][:-1]  # the last row is the start token's, which is no symbol
        return log_softmax(hidden_NM @ symbols_VM.T)


class TestLinearWithBias(HeadContract):
    config = Linear(bias=True)
    parameters_of_11_by_8 = 88 + 11
    multiplications_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ weights["weight_VM"].T + weights["bias_V"])

    def test_the_bias_starts_at_zero(self) -> None:
        head = build_head(self.config, 11, Decoder(width=8, depth=1), nn.Embedding(12, 8))
        assert head.initial_scale("bias_V") is None
        assert head.last_bias().tolist() == [0.0] * 11


class TestScaledLinear(HeadContract):
    config = Linear(scale=1.7)
    parameters_of_11_by_8 = 88
    initial_spread = 1.7

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(np.longdouble(1.7) * (hidden_NM @ weights["weight_VM"].T))


class _Softcapped(HeadContract):
    """No logit is beyond 2, so that extreme hidden states show saturation."""

    @pytest.mark.parametrize("largest", [1e2, 1e4])
    def test_losses_and_gradients_are_right_at_extreme_logits(self, largest: float) -> None:
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens()
        hidden_NM = (hidden_NM * largest).requires_grad_()
        total = head.training_loss(hidden_NM, targets_N)
        total.backward()
        weights, exact_NM = self.weights(head, embedding), hidden_NM.detach().numpy().astype(np.longdouble)
        expected_N = self.naive_losses(weights, exact_NM, targets_N).astype(float)
        np.testing.assert_allclose(head.loss(hidden_NM, targets_N).numpy(), expected_N, rtol=1e-5)
        assert 3.9 < expected_N.max() <= 4 + math.log(11)  # as far apart as 2 and -2 are
        expected = self.naive_token_losses(weights, exact_NM, targets_N).astype(float).sum()
        np.testing.assert_allclose(total.item(), expected, rtol=1e-5)
        for gradient in (hidden_NM.grad, *(parameter.grad for parameter in head.parameters())):
            assert bool(gradient.isfinite().all())

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_hidden_state_that_is_not_finite_gives_a_loss_that_is_not(self, value: float) -> None:
        """An infinite one has the loss of logits at their bounds, but no finite gradient by W."""
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        hidden_NM[2, 3] = value
        assert bool(head.loss(hidden_NM, targets_N)[2].isfinite()) == (value == math.inf)
        (weight,) = (tensor for tensor in head.trained() if tensor.ndim == 2)
        head.training_loss(hidden_NM, targets_N).backward()
        assert not bool(weight.grad.isfinite().all())


class TestSoftcappedLinear(_Softcapped):
    config = Linear(softcap=2.0)
    parameters_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(2 * np.tanh(hidden_NM @ weights["weight_VM"].T / 2))


class TestLinearWithZLoss(HeadContract):
    config = Linear(z_loss=0.1)
    parameters_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ weights["weight_VM"].T)

    def naive_token_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        log_z_N = np.log(np.exp(hidden_NM @ weights["weight_VM"].T).sum(-1))
        return self.naive_losses(weights, hidden_NM, targets_N) + np.longdouble(0.1) * log_z_N**2


class TestLinearWithEveryOption(_Softcapped):
    config = Linear(tied=True, bias=True, scale=0.6, softcap=2.0, z_loss=0.1)
    parameters_of_11_by_8 = 11
    multiplications_of_11_by_8 = 88
    initial_spread = 0.6

    @staticmethod
    def naive_logits(weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        product_NV = np.longdouble(0.6) * (hidden_NM @ weights["embedding"][:-1].T)
        return 2 * np.tanh((product_NV + weights["bias_V"]) / 2)

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(self.naive_logits(weights, hidden_NM))

    def naive_token_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        log_z_N = np.log(np.exp(self.naive_logits(weights, hidden_NM)).sum(-1))
        return self.naive_losses(weights, hidden_NM, targets_N) + np.longdouble(0.1) * log_z_N**2


class TestLinearWithEveryOptionButSoftcap(HeadContract):
    """All options that the chunked cross-entropy of a product takes at once."""

    config = Linear(tied=True, bias=True, scale=0.6, z_loss=0.1)
    parameters_of_11_by_8 = 11
    multiplications_of_11_by_8 = 88
    initial_spread = 0.6

    @staticmethod
    def naive_logits(weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return np.longdouble(0.6) * (hidden_NM @ weights["embedding"][:-1].T) + weights["bias_V"]

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(self.naive_logits(weights, hidden_NM))

    def naive_token_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        log_z_N = np.log(np.exp(self.naive_logits(weights, hidden_NM)).sum(-1))
        return self.naive_losses(weights, hidden_NM, targets_N) + np.longdouble(0.1) * log_z_N**2


class TestLowRank(HeadContract):
    config = LowRank(rank=3)
    parameters_of_11_by_8 = 3 * 11 + 3 * 8

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ (weights["out_VD"] @ weights["in_DM"]).T)


class TestLowRankOfFullRank(TestLowRank):
    config = LowRank(rank=8)
    parameters_of_11_by_8 = 8 * 11 + 8 * 8
