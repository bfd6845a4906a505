"""The controls under the contract of ``head_contract.py``; the gradients they change follow their own definitions."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from head_contract import HeadContract, Weights
from spamlang_training import final_loss
from torch import Tensor, nn

from isoloss import AdamW, BackwardRank, Decoder, DummyClasses, Linear, ProjectedUpdate, SpamLang, Steps
from isoloss.model.decoder import LanguageModel
from isoloss.model.heads import backward_rank, projected_update
from isoloss.model.heads.backward_rank import truncation
from isoloss.model.heads.linear import LinearHead
from isoloss.model.heads.projected_update import projected
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED


def log_softmax(logits_NV: np.ndarray) -> np.ndarray:
    return logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))


class ControlContract(HeadContract):
    """Logits and losses of the linear head, with gradients of another definition."""

    parameters_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ weights["weight_VM"].T)

    def definition(self, gradient_NM: np.ndarray, gradient_VM: np.ndarray, weight_VM: np.ndarray) -> Any:
        """Return the control's gradients by h and by W from the exact ones, in float64."""
        raise NotImplementedError

    def expected(self, weight_VM: Tensor, hidden_NM: Tensor, targets_N: Tensor) -> Any:
        """Return the control's gradients from the exact ones, (p - y) W and (p - y)ᵀ h over the scored tokens."""
        weight_VM, hidden_NM = weight_VM.detach().double().numpy(), hidden_NM.detach().double().numpy()
        scored_N = (targets_N != UNSCORED).numpy()
        difference_NV = np.exp(log_softmax(hidden_NM @ weight_VM.T))
        difference_NV[np.arange(len(targets_N)), targets_N.clamp(min=0).numpy()] -= 1
        difference_NV *= scored_N[:, None]
        return self.definition(difference_NV @ weight_VM, difference_NV.T @ hidden_NM, weight_VM)

    def test_gradients_are_those_of_the_formula(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens(10)
        targets_N[4] = UNSCORED
        hidden_NM.requires_grad_()
        (head.training_loss(hidden_NM, targets_N) * 0.5).backward()
        by_hidden_NM, by_weight_VM = self.expected(head.weight_VM, hidden_NM, targets_N)
        np.testing.assert_allclose(hidden_NM.grad, 0.5 * by_hidden_NM, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(head.weight_VM.grad, 0.5 * by_weight_VM, rtol=1e-5, atol=2e-6)

    def test_gradcheck_in_float64(self) -> None:
        """Not of the trained sum, of which the gradients are no derivatives, but of each token's loss."""
        head, _ = self.head()
        head.double()
        hidden_NM, targets_N = self.tokens(4)
        targets_N[2] = UNSCORED
        leaves = (hidden_NM.double().requires_grad_(), head.weight_VM)
        assert torch.autograd.gradcheck(lambda hidden_NM, _: head.token_loss(hidden_NM, targets_N), leaves)

    def test_the_sum_in_chunks_is_autograds_of_all_tokens_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the definition asks of the whole batch, whatever the chunks."""
        monkeypatch.setattr("isoloss.model.loss.chunk_tokens", lambda *_: 4)
        self.test_gradients_are_those_of_the_formula()

    def test_no_scored_token_means_gradients_of_zero(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        hidden_NM.requires_grad_()
        head.training_loss(hidden_NM, torch.full_like(targets_N, UNSCORED)).backward()
        assert bool((hidden_NM.grad == 0).all())
        assert bool((head.weight_VM.grad == 0).all())

    def test_a_gradient_that_is_not_finite_stays_so(self) -> None:
        """The trial must end ``nonfinite``, not with an error of the eigenvalue solver."""
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        hidden_NM[0, 0] = float("inf")
        hidden_NM.requires_grad_()
        head.training_loss(hidden_NM, targets_N).backward()
        assert not bool(hidden_NM.grad.isfinite().all())
        assert not bool(head.weight_VM.grad.isfinite().all())

    def test_gradients_under_autocast_are_float32s_to_bfloat16s_digits(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens(10)
        hidden_NM.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total = head.training_loss(hidden_NM, targets_N)
        total.backward()
        assert total.dtype == hidden_NM.grad.dtype == head.weight_VM.grad.dtype == torch.float32
        for found, expected in zip(
            (hidden_NM.grad, head.weight_VM.grad), self.expected(head.weight_VM, hidden_NM, targets_N), strict=True
        ):
            assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


class TestBackwardRank(ControlContract):
    config = BackwardRank(rank=3)

    def definition(self, gradient_NM: np.ndarray, gradient_VM: np.ndarray, weight_VM: np.ndarray) -> Any:
        left, singular, right = np.linalg.svd(gradient_NM, full_matrices=False)
        truncated_NM = (left[:, :3] * singular[:3]) @ right[:3]
        return truncated_NM * np.linalg.norm(singular) / np.linalg.norm(singular[:3]), gradient_VM

    def test_the_gradient_has_the_rank_and_the_exact_size(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens(40)
        hidden_NM.requires_grad_()
        head.training_loss(hidden_NM, targets_N).backward()
        singular = np.linalg.svd(hidden_NM.grad.double().numpy(), compute_uv=False)
        assert singular[3] < 1e-6 * singular[0] < 1e-3 * singular[2]
        exact_NM = torch.autograd.grad(head.token_loss(hidden_NM, targets_N).sum(), hidden_NM)[0]
        assert float(hidden_NM.grad.norm()) == pytest.approx(float(exact_NM.norm()), rel=1e-6)

    def test_two_workers_truncate_the_gradient_of_both_their_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens(10)
        both_NM, _ = self.expected(head.weight_VM, hidden_NM, targets_N)
        leaf_NM = hidden_NM.clone().requires_grad_()
        exact_NM = torch.autograd.grad(head.token_loss(leaf_NM, targets_N).sum(), leaf_NM)[0].double()
        others_MM = exact_NM[5:].T @ exact_NM[5:]
        monkeypatch.setattr(backward_rank, "sum_over_workers", lambda gram_MM: gram_MM + others_MM)
        head.training_loss(leaf_NM[:5], targets_N[:5]).backward()
        np.testing.assert_allclose(leaf_NM.grad[:5], both_NM[:5], rtol=1e-5, atol=2e-6)

    def test_a_gradient_of_lower_rank_than_asked_stays_as_it_is(self) -> None:
        generator = torch.Generator().manual_seed(0)
        exact_NM = torch.randn(9, 2, generator=generator).double() @ torch.randn(2, 8, generator=generator).double()
        torch.testing.assert_close(exact_NM @ truncation(exact_NM.T @ exact_NM, 3), exact_NM)
        assert bool((truncation(torch.zeros(8, 8, dtype=torch.float64), 3) == 0).all())
        tiny_NM = exact_NM * 1e-30  # float32 gradients as small as this have squares of 1e-60
        torch.testing.assert_close(tiny_NM @ truncation(tiny_NM.T @ tiny_NM, 3), tiny_NM, rtol=1e-7, atol=0)


class TestBackwardRankOfFullRank(ControlContract):
    config = BackwardRank(rank=8)

    def definition(self, gradient_NM: np.ndarray, gradient_VM: np.ndarray, weight_VM: np.ndarray) -> Any:
        return gradient_NM, gradient_VM

    def test_gradients_are_the_linear_heads_to_the_last_bit(self) -> None:
        gradients = []
        for head in (self.head()[0], LinearHead(Linear(), 11, Decoder(width=8, depth=1), nn.Embedding(12, 8))):
            head.load_state_dict(self.head()[0].state_dict())
            hidden_NM, targets_N = self.tokens(10)
            head.training_loss(hidden_NM.requires_grad_(), targets_N).backward()
            gradients.append((hidden_NM.grad, head.weight_VM.grad))
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


class TestProjectedUpdate(ControlContract):
    config = ProjectedUpdate()

    def definition(self, gradient_NM: np.ndarray, gradient_VM: np.ndarray, weight_VM: np.ndarray) -> Any:
        basis_VM = np.linalg.svd(weight_VM, full_matrices=False)[0]
        return gradient_NM, basis_VM @ (basis_VM.T @ gradient_VM)

    @pytest.mark.parametrize("rank", [8, 5])
    def test_directions_that_w_has_only_by_rounding_are_none_of_its_column_space(
        self, rank: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(projected_update, "BLOCK_ROWS", 7)
        generator = torch.Generator().manual_seed(0)
        exact_VM = torch.randn(40, rank, generator=generator) @ torch.randn(rank, 8, generator=generator)
        gradient_VM = torch.randn(40, 8, generator=generator)
        left_VM = np.linalg.svd(exact_VM.double().numpy(), full_matrices=False)[0][:, :rank]
        expected_VM = left_VM @ (left_VM.T @ gradient_VM.double().numpy())
        np.testing.assert_allclose(projected(gradient_VM, exact_VM), expected_VM, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_weight_that_is_not_finite_leaves_a_gradient_that_is_not(self, value: float) -> None:
        weight_VM = torch.ones(11, 8)
        weight_VM[0, 0] = value
        assert not bool(projected(torch.ones(11, 8), weight_VM).isfinite().all())

    def test_projecting_twice_changes_nothing_more(self) -> None:
        generator = torch.Generator().manual_seed(0)
        weight_VM, gradient_VM = torch.randn(2, 40, 8, generator=generator)
        once_VM = projected(gradient_VM, weight_VM)
        torch.testing.assert_close(projected(once_VM, weight_VM), once_VM)
        # Of 40 random directions 8 are kept.
        assert float(once_VM.square().sum() / gradient_VM.square().sum()) == pytest.approx(8 / 40, rel=0.3)
        torch.testing.assert_close(projected(weight_VM, weight_VM), weight_VM)


class TestDummyClasses(HeadContract):
    config = DummyClasses(count=3)
    parameters_of_11_by_8 = (11 + 3) * 8
    classes_beside = 3

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ weights["weight_VM"].T)

    def test_the_symbols_rows_start_as_the_linear_heads(self) -> None:
        weights = []
        for head in (self.config, Linear()):
            trial = Trial(
                task=SpamLang(vocab_size=12, sequence_length=4),
                model=Decoder(width=16, depth=1),
                head=head,
                optimizer=AdamW(learning_rate=1e-3),
                budget=Steps(1, batch_size=1),
            )
            weights.append(LanguageModel(trial).head.weight_VM)
        assert len(weights[0]) == 15
        assert torch.equal(weights[0][:12], weights[1])


@pytest.mark.parametrize("head", [BackwardRank(rank=3), ProjectedUpdate(), DummyClasses(count=3)], ids=lambda h: h.kind)
def test_each_control_learns_spamlang(head: Any) -> None:
    assert final_loss(head) < 0.02 * math.log(32)
