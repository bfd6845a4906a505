"""Output experts under the contract of ``head_contract.py``: their routes, their balance and their work."""

# N tokens, V vocabulary, M width, E experts

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from head_contract import HeadContract, Weights
from spamlang_training import final_loss
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from isoloss import Experts
from isoloss.model.heads import experts


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def log_softmax(logits_NV: np.ndarray) -> np.ndarray:
    return logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))


class TestExperts(HeadContract):
    config = Experts(rank=2, experts=3, active=2, balance=0.5)
    parameters_of_11_by_8 = 3 * (11 * 2 + 2 * 8) + 3 * 8
    multiplications_of_11_by_8 = 2 * (11 * 2 + 2 * 8) + 3 * 8

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        logits_NV = np.zeros((len(hidden_NM), len(weights["out_EVD"][0])), dtype=np.longdouble)
        for token, hidden_M in enumerate(hidden_NM):
            router_E = weights["router_EM"] @ hidden_M
            chosen = np.argsort(-router_E)[: self.config.active]
            for expert, gate in zip(chosen, softmax(router_E[chosen]), strict=True):
                logits_NV[token] += gate * (weights["out_EVD"][expert] @ (weights["in_EDM"][expert] @ hidden_M))
        return log_softmax(logits_NV)

    def naive_token_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        """Fedus et al. 2022, equation 4, with the mean over tokens left to the mean of the losses."""
        router_NE = hidden_NM @ weights["router_EM"].T
        chosen_NK = np.argsort(-router_NE)[:, : self.config.active]
        share_E = np.bincount(chosen_NK.ravel(), minlength=3) / chosen_NK.size
        balance_N = self.config.balance * 3 * softmax(router_NE) @ share_E
        return self.naive_losses(weights, hidden_NM, targets_N) + balance_N

    def test_equal_router_values_choose_the_earlier_experts(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens(64)
        with torch.no_grad():
            head.router_EM.copy_(head.router_EM[[1, 1, 1]])
        routes = head.routes(hidden_NM)
        assert routes.expert_NK.tolist() == [[0, 1]] * 64
        assert routes.gate_NK.unique().tolist() == [0.5]
        # f is (1/2, 1/2, 0) and p is 1/3 everywhere: 3 times their product is 1.
        difference_N = head.token_loss(hidden_NM, targets_N) - head.loss(hidden_NM, targets_N)
        torch.testing.assert_close(difference_N, torch.full((64,), 0.5))

    def test_an_expert_that_no_token_chooses_gets_a_gradient_of_zero(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        with torch.no_grad():
            head.router_EM.copy_(head.router_EM[[1, 1, 1]])
        head.training_loss(hidden_NM, targets_N).backward()
        for parameter in (head.in_EDM, head.out_EVD):
            assert parameter.grad[:2].abs().amax((1, 2)).min() > 0
            assert bool((parameter.grad[2:] == 0).all())

    def test_a_balanced_batch_has_the_least_balance_loss_there_is(self) -> None:
        """With f = 1/E, E sum_e f_e p_e is the sum of p: 1, whatever the router's probabilities."""
        head, _ = self.head()
        eye = torch.eye(8)
        with torch.no_grad():
            head.router_EM.copy_(eye[:3])
        hidden_NM = torch.stack([2 * eye[0] + eye[1], 2 * eye[1] + eye[2], 2 * eye[2] + eye[0]])
        targets_N = torch.tensor([0, 10, 5])
        difference_N = head.token_loss(hidden_NM, targets_N) - head.loss(hidden_NM, targets_N)
        torch.testing.assert_close(difference_N, torch.full((3,), 0.5))

    def test_shares_are_those_of_all_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another worker's tokens went to the last two experts, twice as many as there are here."""
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        others_E = torch.tensor([0, 12, 12])
        monkeypatch.setattr(experts, "sum_over_workers", lambda counts_E: counts_E + others_E)
        routes = head.routes(hidden_NM)
        share_E = (torch.bincount(routes.expert_NK.flatten(), minlength=3) + others_E) / 36
        balance = 0.5 * 3 * (routes.probability_NE @ share_E).sum()
        found = head.training_loss(hidden_NM, targets_N) - head.loss(hidden_NM, targets_N).sum()
        torch.testing.assert_close(found, balance)

    @pytest.mark.parametrize("tokens_a_chunk", [7, 1000])
    def test_a_token_costs_its_active_experts_only(self, tokens_a_chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Forward and twice for gradients; the router once more, for the shares."""
        monkeypatch.setattr("isoloss.model.loss.chunk_tokens", lambda *_: tokens_a_chunk)
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens(50)
        with FlopCounterMode(display=False) as counted:
            head.training_loss(hidden_NM.requires_grad_(), targets_N)
        assert counted.get_total_flops() == 2 * 50 * (3 * self.config.multiplications(11, 8) + 3 * 8)

    def test_under_autocast_the_routes_are_float32s(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens(50)
        exact = head.routes(hidden_NM)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            coarse, loss_N = head.routes(hidden_NM), head.token_loss(hidden_NM, targets_N)
            head.training_loss(hidden_NM, targets_N).backward()
        assert all(torch.equal(*pair) for pair in zip(coarse, exact, strict=True))
        assert loss_N.dtype == torch.float32
        torch.testing.assert_close(loss_N, head.token_loss(hidden_NM, targets_N), rtol=0.02, atol=0.02)

    def test_it_learns_spamlang(self) -> None:
        assert final_loss(Experts(rank=8)) < 0.02 * math.log(32)
