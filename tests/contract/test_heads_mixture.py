"""The mixture of softmaxes under the contract of ``head_contract.py``."""

# N tokens, V vocabulary, M width, D columns of the last matrix, K components

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from head_contract import HeadContract, Weights, check_autocast
from numpy.polynomial.hermite_e import hermegauss
from spamlang_training import final_loss
from torch import Tensor, nn

from isoloss import Decoder, LowRank, Mixture
from isoloss.model.heads import build_head
from isoloss.model.heads.mixture import TANH_POWER


class TestMixture(HeadContract):
    config = Mixture(components=3, rank=2)
    parameters_of_11_by_8 = 11 * 2 + 3 * 2 * 8 + 3 * 8
    multiplications_of_11_by_8 = 3 * (11 * 2 + 2 * 8 + 8)
    amplified = "out_VD"  # tanh bounds what h can do

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        prior_NK = np.exp(hidden_NM @ weights["prior_KM"].T)
        prior_NK /= prior_NK.sum(-1, keepdims=True)
        parts = []
        for prior_N, in_DM in zip(prior_NK.T, weights["in_KDM"], strict=True):
            logits_NV = np.tanh(hidden_NM @ in_DM.T) @ weights["out_VD"].T
            logits_NV = logits_NV - logits_NV.max(-1, keepdims=True)
            total_N1 = np.exp(logits_NV).sum(-1, keepdims=True)
            parts.append(np.log(prior_N[:, None]) + logits_NV - np.log(total_N1))
        return np.logaddexp.reduce(parts)  # type: ignore[no-any-return]

    def test_the_sum_in_chunks_keeps_no_logits(self) -> None:
        """Nothing as large as N x V waits for the backward pass, of 400 tokens and 129 symbols."""
        head, _ = self.head(129)
        hidden_NM, targets_N = self.tokens(400, 129)
        kept: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            head.training_loss(hidden_NM.requires_grad_(), targets_N)
        assert max(kept) == 400 * 8


def test_of_no_rank_it_has_the_models_width() -> None:
    config = Mixture(components=2)
    assert config.parameters(11, 8) == 11 * 8 + 2 * 8 * 8 + 2 * 8
    assert config.multiplications(11, 8) == 2 * (11 * 8 + 8 * 8 + 8)
    assert build_head(config, 11, Decoder(width=8, depth=1), nn.Embedding(12, 8)).out_VD.shape == (11, 8)


def contexts(config: Any, count: int) -> np.ndarray:
    """Return log-probabilities of ``count`` random contexts over 31 symbols, in float64."""
    contract = TestMixture()
    contract.config, contract.width = config, 16
    head, _ = contract.head(31)
    hidden_NM = torch.randn(count, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        return head.double().log_probabilities(hidden_NM).numpy()


def test_a_mixture_breaks_the_softmax_bottleneck() -> None:
    """Log-probabilities of a head of rank D have rank D + 1 at most, those of a mixture any (Yang et al. 2018)."""
    assert np.linalg.matrix_rank(contexts(LowRank(rank=3), 60), tol=1e-9) == 4
    assert np.linalg.matrix_rank(contexts(Mixture(components=2, rank=3), 60), tol=1e-9) == 31


def test_the_power_of_tanh_is_that_of_quadrature() -> None:
    x, weight = hermegauss(150)
    assert pytest.approx((weight * np.tanh(x) ** 2).sum() / weight.sum(), abs=1e-6) == TANH_POWER


def test_under_autocast_losses_are_float32_and_near_those_without() -> None:
    check_autocast(TestMixture().head(61)[0], width=8)


@pytest.mark.parametrize("config", [Mixture(), Mixture(components=2)], ids=["4", "2"])
def test_it_learns_spamlang(config: Mixture) -> None:
    assert final_loss(config) < 0.1 * math.log(32)
