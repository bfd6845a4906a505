"""What every LM head must satisfy: inherit ``HeadContract`` as ``Test…`` with the head's naive formula."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isoloss import AdamW, Decoder, SpamLang, Steps
from isoloss.model.decoder import LanguageModel
from isoloss.model.heads import build_head
from isoloss.model.heads.base import Head
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED

torch.set_num_threads(1)

Weights = dict[str, np.ndarray]


class HeadContract:
    """A subclass sets ``config`` and ``parameters_of_11_by_8``, and overrides ``naive_log_probabilities``."""

    config: Any
    parameters_of_11_by_8: int
    """The parameters that the head adds at V = 11 and M = 8, counted by hand."""

    vocab_size = 11
    width = 8

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        """The head's log-probabilities by definition, without care for overflow.

        ``weights`` holds the head's parameters by name, and the input embedding as ``"embedding"``. Both arguments
        are ``np.longdouble``, whose exponential does not overflow below 11,356.
        """
        raise NotImplementedError

    # --- what the checks stand on

    def head(self, vocab_size: int | None = None, seed: int = 0) -> tuple[Head, nn.Embedding]:
        """Return the head on a random embedding, its weights of order 1."""
        vocab_size = vocab_size or self.vocab_size
        embedding = nn.Embedding(vocab_size + 1, self.width)
        head = build_head(self.config, vocab_size, Decoder(width=self.width, depth=1), embedding)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in (*head.parameters(), embedding.weight):
                parameter.normal_(0.0, 0.7, generator=generator)
        return head, embedding

    def tokens(self, count: int = 6, vocab_size: int | None = None) -> tuple[Tensor, Tensor]:
        """Return hidden states of order 1 and targets, the first and last symbol among them."""
        vocab_size = vocab_size or self.vocab_size
        generator = torch.Generator().manual_seed(1)
        hidden_NM = torch.randn(count, self.width, generator=generator)
        targets_N = torch.randint(vocab_size, (count,), generator=generator)
        targets_N[0], targets_N[1] = 0, vocab_size - 1
        return hidden_NM, targets_N

    @staticmethod
    def weights(head: Head, embedding: nn.Embedding) -> Weights:
        tensors = {**dict(head.named_parameters()), "embedding": embedding.weight}
        return {name: value.detach().numpy().astype(np.longdouble) for name, value in tensors.items()}

    def naive_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        return -self.naive_log_probabilities(weights, hidden_NM)[np.arange(len(targets_N)), targets_N.numpy()]

    # --- the contract

    @pytest.mark.parametrize("vocab_size", [2, 7, 129])
    def test_probabilities_of_exactly_v_symbols_sum_to_one(self, vocab_size: int) -> None:
        head, _ = self.head(vocab_size)
        hidden_NM, _ = self.tokens(vocab_size=vocab_size)
        log_probabilities_NV = head.log_probabilities(hidden_NM)
        assert log_probabilities_NV.dtype == torch.float32
        assert log_probabilities_NV.shape == (6, vocab_size)
        total_N = log_probabilities_NV.double().exp().sum(-1)
        torch.testing.assert_close(total_N, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-6)

    def test_log_probabilities_and_losses_are_the_formulas(self) -> None:
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens()
        expected_NV = self.naive_log_probabilities(
            self.weights(head, embedding), hidden_NM.numpy().astype(np.longdouble)
        )
        with torch.no_grad():
            log_probabilities_NV, loss_N = head.log_probabilities(hidden_NM), head.loss(hidden_NM, targets_N)
        assert loss_N.dtype == torch.float32
        np.testing.assert_allclose(log_probabilities_NV.numpy(), expected_NV.astype(float), rtol=2e-6, atol=2e-6)
        expected_N = -expected_NV[np.arange(6), targets_N.numpy()]
        np.testing.assert_allclose(loss_N.numpy(), expected_N.astype(float), rtol=2e-6, atol=2e-6)

    def test_gradients_are_those_of_the_formula(self) -> None:
        """By every weight and hidden state, against central differences of the formula in extended precision."""
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens(3)
        weight_N = torch.tensor([1.0, -2.0, 0.5])  # so that a head that mixes up tokens is found out
        hidden_NM.requires_grad_()
        (head.loss(hidden_NM, targets_N) * weight_N).sum().backward()
        tensors = {**dict(head.named_parameters()), "embedding": embedding.weight, "hidden": hidden_NM}
        values = {name: value.detach().numpy().astype(np.longdouble) for name, value in tensors.items()}
        step = np.longdouble(1e-6)
        for name, value in values.items():
            expected = np.zeros(value.shape)
            for place in np.ndindex(value.shape):
                ends = []
                for sign in (1, -1):
                    value[place] += sign * step
                    loss_N = self.naive_losses(values, values["hidden"], targets_N)
                    ends.append((loss_N * weight_N.numpy()).sum())
                    value[place] -= sign * step
                expected[place] = (ends[0] - ends[1]) / (2 * step)
            gradient = tensors[name].grad
            actual = np.zeros(value.shape) if gradient is None else gradient.numpy()
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6, err_msg=name)

    def test_gradcheck_in_float64(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Heads compute losses in float32, which is too coarse for torch's gradcheck; here that step is left out.
        monkeypatch.setattr(Tensor, "float", lambda self: self)
        head, embedding = self.head()
        head.double()
        embedding.double()
        hidden_NM, targets_N = self.tokens(4)
        targets_N[2] = UNSCORED
        leaves = (hidden_NM.double().requires_grad_(), *head.parameters())
        assert torch.autograd.gradcheck(lambda hidden_NM, *_: head.loss(hidden_NM, targets_N), leaves)

    @pytest.mark.parametrize("largest", [1e2, 1e4])
    def test_losses_and_gradients_are_right_at_extreme_logits(self, largest: float) -> None:
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens()
        weights = self.weights(head, embedding)
        spread = self.naive_log_probabilities(weights, hidden_NM.numpy().astype(np.longdouble)).min(-1)
        hidden_NM = (hidden_NM * torch.from_numpy(largest / -spread.astype(np.float32))[:, None]).requires_grad_()
        loss_N = head.loss(hidden_NM, targets_N)
        loss_N.sum().backward()
        expected_N = self.naive_losses(weights, hidden_NM.detach().numpy().astype(np.longdouble), targets_N)
        assert expected_N.max() > 0.1 * largest
        np.testing.assert_allclose(loss_N.detach().numpy(), expected_N.astype(float), rtol=1e-5, atol=1e-5 * largest)
        assert bool((loss_N >= 0).all())
        for gradient in (hidden_NM.grad, *(parameter.grad for parameter in head.parameters())):
            assert bool(gradient.isfinite().all())

    def test_unscored_tokens_have_no_loss_and_no_gradient(self) -> None:
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        scored_N = torch.tensor([True, True, False, True, False, True])
        apart_N = targets_N.where(scored_N, UNSCORED)
        hidden_NM.requires_grad_()
        loss_N = head.loss(hidden_NM, apart_N)
        loss_N.sum().backward()
        assert loss_N[~scored_N].tolist() == [0.0, 0.0]
        assert bool((hidden_NM.grad[~scored_N] == 0).all())
        torch.testing.assert_close(loss_N[scored_N], head.loss(hidden_NM, targets_N)[scored_N], rtol=1e-6, atol=1e-6)

    def test_parameters_are_those_declared_and_those_counted_by_hand(self) -> None:
        head, _ = self.head(11)
        built = sum(parameter.numel() for parameter in head.parameters())
        assert built == self.config.parameters(11, 8) == self.parameters_of_11_by_8

    def test_another_head_continues_from_its_state(self) -> None:
        head, embedding = self.head(seed=0)
        other, other_embedding = self.head(seed=1)
        hidden_NM, targets_N = self.tokens()
        assert not torch.equal(head.loss(hidden_NM, targets_N), other.loss(hidden_NM, targets_N))
        for old, new in ((head, other), (embedding, other_embedding)):
            buffer = io.BytesIO()
            torch.save(old.state_dict(), buffer)
            new.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
        assert torch.equal(head.loss(hidden_NM, targets_N), other.loss(hidden_NM, targets_N))

    @pytest.mark.parametrize("width", [32, 128])
    def test_initial_logits_have_the_linear_heads_scale(self, width: int) -> None:
        """For h of unit variance, V logits W h with W of N(0, s^2) have standard deviation s sqrt(M).

        Log-probabilities are logits less one number a token, so their spread over symbols is the logits'.
        """
        trial = Trial(
            task=SpamLang(vocab_size=997, sequence_length=4),
            model=Decoder(width=width, depth=1),
            head=self.config,
            optimizer=AdamW(learning_rate=1e-3),
            budget=Steps(1, batch_size=1),
        )
        generator = torch.Generator().manual_seed(0)
        hidden_NM = torch.randn(256, width, generator=generator)
        with torch.no_grad():
            log_probabilities_NV = LanguageModel(trial).head.log_probabilities(hidden_NM)
        spread = float(log_probabilities_NV.var(-1).mean().sqrt())
        assert spread == pytest.approx(0.02 * math.sqrt(width), rel=0.15)
