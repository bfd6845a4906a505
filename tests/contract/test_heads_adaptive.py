"""Adaptive softmax under the contract of ``head_contract.py``, and what clusters without a token must not change."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from head_contract import HeadContract, Weights
from spamlang_training import final_loss

from isoloss import AdamW, Adaptive, Decoder, SpamLang, Steps
from isoloss.model.decoder import LanguageModel
from isoloss.model.heads.adaptive import AdaptiveHead
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED


def log_softmax(logits_NV: np.ndarray) -> np.ndarray:
    return logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))


class AdaptiveContract(HeadContract):
    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        """p(v) of the first cluster is a softmax over its symbols and one class for each later cluster; Grave 2017."""
        first_NC = log_softmax(hidden_NM @ weights["softmax.head.weight"].T)
        later = len(self.config.cutoffs)
        parts = [first_NC[:, :-later]]
        for cluster in range(later):
            inner_NV = hidden_NM @ weights[f"softmax.tail.{cluster}.0.weight"].T
            parts.append(
                first_NC[:, [cluster - later]] + log_softmax(inner_NV @ weights[f"softmax.tail.{cluster}.1.weight"].T)
            )
        return np.concatenate(parts, axis=-1)


class TestAdaptiveOfTwoClusters(AdaptiveContract):
    config = Adaptive(cutoffs=(0.5,), narrowing=2.0)
    parameters_of_11_by_8 = (6 + 1) * 8 + 4 * (8 + 5)
    multiplications_of_11_by_8 = (6 + 1) * 8 + 24  # 5 of 11 targets need the 52 of the second cluster: 23.6

    @pytest.mark.parametrize("width", [32, 128])
    def test_initial_logits_have_the_linear_heads_scale(self, width: int) -> None:
        """Within each cluster; between clusters log-probabilities differ by the clusters' sizes."""
        trial = Trial(
            task=SpamLang(vocab_size=1024, sequence_length=4),
            model=Decoder(width=width, depth=1),
            head=self.config,
            optimizer=AdamW(learning_rate=1e-3),
            budget=Steps(1, batch_size=1),
        )
        hidden_NM = torch.randn(256, width, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            log_probabilities_NV = LanguageModel(trial).head.log_probabilities(hidden_NM)
        for cluster_NV in log_probabilities_NV.split([512, 512], dim=1):
            spread = float(cluster_NV.var(-1).mean().sqrt())
            assert spread == pytest.approx(0.02 * math.sqrt(width), rel=0.15)
        first, second = (cluster_NV.exp().sum(-1).mean().item() for cluster_NV in log_probabilities_NV.split(512, 1))
        assert [first, second] == pytest.approx([512 / 513, 1 / 513], rel=0.05)


class TestAdaptiveOfThreeClusters(AdaptiveContract):
    config = Adaptive(narrowing=2.0)
    # clusters of 1, 5 and 5 symbols, the later ones read through 4 and 2 dimensions
    parameters_of_11_by_8 = (1 + 2) * 8 + 4 * (8 + 5) + 2 * (8 + 5)
    multiplications_of_11_by_8 = (1 + 2) * 8 + 35  # 5/11 of 52 and 5/11 of 26: 35.5

    @pytest.mark.parametrize("vocab_size", [7, 129])
    def test_probabilities_of_exactly_v_symbols_sum_to_one(self, vocab_size: int) -> None:
        """Of 2 symbols no three clusters can be made."""
        super().test_probabilities_of_exactly_v_symbols_sum_to_one(vocab_size)

    @pytest.mark.parametrize("width", [32])
    def test_initial_logits_have_the_linear_heads_scale(self, width: int) -> None:
        """Of each matrix: those before the last keep unit variance, the last multiplies it to 0.02 sqrt(M)."""
        head = AdaptiveHead(self.config, 64, Decoder(width=width, depth=1), torch.nn.Embedding(1, 1))
        scales = {name: head.initial_scale(name) for name, _ in head.named_parameters()}
        assert scales.pop("softmax.head.weight") == 0.02
        for cluster, dimensions in enumerate((16, 8)):
            assert scales.pop(f"softmax.tail.{cluster}.0.weight") * width**0.5 == pytest.approx(1)
            last = scales.pop(f"softmax.tail.{cluster}.1.weight")
            assert last * dimensions**0.5 == pytest.approx(0.02 * width**0.5)
        assert not scales

    def test_clusters_without_a_target_get_gradients_of_zero_in_any_chunking(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("isoloss.model.loss.chunk_tokens", lambda *_: 2)
        head, _ = self.head()
        hidden_NM, _ = self.tokens()
        head.training_loss(hidden_NM, torch.tensor([0, 0, UNSCORED, 0, UNSCORED, UNSCORED])).backward()
        gradients = {name: parameter.grad for name, parameter in head.named_parameters()}
        assert len(gradients) == 5
        assert gradients.pop("softmax.head.weight").abs().max() > 0
        for gradient in gradients.values():
            assert bool((gradient == 0).all())

    def test_under_autocast_losses_keep_float32s_digits(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        exact_N = head.loss(hidden_NM, targets_N)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            coarse_NM = hidden_NM.bfloat16()
            found = head.loss(hidden_NM, targets_N), head.loss(coarse_NM, targets_N), head.log_probabilities(coarse_NM)
        assert torch.equal(found[0], exact_N)
        assert {tensor.dtype for tensor in found} == {torch.float32}
        torch.testing.assert_close(found[1], head.loss(coarse_NM.float(), targets_N), rtol=0, atol=0)

    def test_it_learns_spamlang(self) -> None:
        assert final_loss(self.config) < 0.02 * math.log(32)
