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

import isoloss.model.loss
from isoloss import AdamW, Decoder, SpamLang, Steps
from isoloss.model.decoder import LanguageModel
from isoloss.model.heads import build_head
from isoloss.model.heads.base import Head
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED

torch.set_num_threads(1)

Weights = dict[str, np.ndarray]


def check_autocast(head: Head, width: int, vocab_size: int = 61) -> None:
    """Under bfloat16 autocast, losses and gradients are float32 and near those without it."""
    generator = torch.Generator().manual_seed(4)
    hidden_NM = torch.randn(20, width, generator=generator)
    targets_N = torch.randint(vocab_size, (20,), generator=generator)

    def gradients() -> tuple[Tensor, ...]:
        leaf_NM = hidden_NM.clone().requires_grad_()
        total = head.training_loss(leaf_NM, targets_N)
        return total, *torch.autograd.grad(total, (leaf_NM, *head.parameters()))

    exact = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = gradients()
        loss_N = head.loss(hidden_NM, targets_N)
    assert rough[0].dtype == loss_N.dtype == torch.float32
    assert rough[0].item() == pytest.approx(exact[0].item(), rel=2e-3)
    assert float(loss_N.sum()) == pytest.approx(exact[0].item(), rel=2e-3)
    for mine, wanted in zip(rough[1:], exact[1:], strict=True):
        assert mine.dtype == torch.float32
        assert float((mine - wanted).norm() / wanted.norm()) < 0.05


class HeadContract:
    """A subclass sets ``config`` and ``parameters_of_11_by_8``, and overrides ``naive_log_probabilities``."""

    config: Any
    parameters_of_11_by_8: int
    """The parameters that the head adds at V = 11 and M = 8, counted by hand."""

    multiplications_of_11_by_8: int | None = None
    """The multiplications by a weight of one token at V = 11 and M = 8, by hand; None: as many as parameters."""

    classes_beside: int = 0
    """Output classes that are no symbols."""

    initial_spread: float = 1.0
    """The spread of the initial logits, over the linear head's."""

    amplified: str | None = None
    """The parameter by which logits are made extreme; None: by the hidden state."""

    vocab_size = 11
    width = 8

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        """The head's log-probabilities by definition, without care for overflow.

        ``weights`` holds the head's parameters by name, and the input embedding as ``"embedding"``. Both arguments
        are ``np.longdouble``, whose exponential does not overflow below 11,356.
        """
        raise NotImplementedError

    def naive_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        """What is measured of each token, by definition; all are scored."""
        return -self.naive_log_probabilities(weights, hidden_NM)[np.arange(len(targets_N)), targets_N.numpy()]

    def naive_token_losses(self, weights: Weights, hidden_NM: np.ndarray, targets_N: Tensor) -> np.ndarray:
        """What training minimises of each token, by definition; all are scored."""
        return self.naive_losses(weights, hidden_NM, targets_N)

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

    # --- the contract

    @pytest.mark.parametrize("vocab_size", [2, 7, 129])
    def test_probabilities_of_exactly_v_symbols_sum_to_one(self, vocab_size: int) -> None:
        head, _ = self.head(vocab_size)
        hidden_NM, _ = self.tokens(vocab_size=vocab_size)
        log_probabilities_NV = head.log_probabilities(hidden_NM)
        assert log_probabilities_NV.dtype == torch.float32
        assert log_probabilities_NV.shape == (6, vocab_size + self.classes_beside)
        total_N = log_probabilities_NV.double().exp().sum(-1)
        torch.testing.assert_close(total_N, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-6)

    def test_log_probabilities_and_losses_are_the_formulas(self) -> None:
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens()
        weights, exact_NM = self.weights(head, embedding), hidden_NM.numpy().astype(np.longdouble)
        with torch.no_grad():
            log_probabilities_NV, loss_N = head.log_probabilities(hidden_NM), head.loss(hidden_NM, targets_N)
            token_loss_N, sum_ = head.token_loss(hidden_NM, targets_N), head.training_loss(hidden_NM, targets_N)
        assert loss_N.dtype == token_loss_N.dtype == sum_.dtype == torch.float32
        assert sum_.shape == ()
        expected_NV = self.naive_log_probabilities(weights, exact_NM).astype(float)
        np.testing.assert_allclose(log_probabilities_NV.numpy(), expected_NV, rtol=2e-6, atol=2e-6)
        expected_N = self.naive_losses(weights, exact_NM, targets_N).astype(float)
        np.testing.assert_allclose(loss_N.numpy(), expected_N, rtol=2e-6, atol=2e-6)
        expected_N = self.naive_token_losses(weights, exact_NM, targets_N).astype(float)
        np.testing.assert_allclose(token_loss_N.numpy(), expected_N, rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(float(sum_), expected_N.sum(), rtol=2e-6, atol=2e-6)

    def test_gradients_are_those_of_the_formula(self) -> None:
        """By every weight and hidden state, against central differences of the formula in extended precision."""
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens(3)
        hidden_NM.requires_grad_()
        (head.training_loss(hidden_NM, targets_N) * 0.5).backward()
        tensors = {**dict(head.named_parameters()), "embedding": embedding.weight, "hidden": hidden_NM}
        values = {name: value.detach().numpy().astype(np.longdouble) for name, value in tensors.items()}
        step = np.longdouble(1e-6)
        for name, value in values.items():
            expected = np.zeros(value.shape)
            for place in np.ndindex(value.shape):
                ends = []
                for sign in (1, -1):
                    value[place] += sign * step
                    ends.append(0.5 * self.naive_token_losses(values, values["hidden"], targets_N).sum())
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
        assert torch.autograd.gradcheck(
            lambda hidden_NM, *_: head.token_loss(hidden_NM, targets_N), leaves, fast_mode=True
        )
        assert torch.autograd.gradcheck(
            lambda hidden_NM, *_: head.training_loss(hidden_NM, targets_N), leaves, fast_mode=True
        )

    def test_the_sum_in_chunks_is_autograds_of_all_tokens_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(isoloss.model.loss, "chunk_tokens", lambda *_: 4)
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens(10)
        targets_N[2], targets_N[8:] = UNSCORED, UNSCORED  # the last chunk has nothing to score
        gradients = []
        for loss in (lambda *tokens: head.token_loss(*tokens).sum(), head.training_loss):
            leaf_NM = hidden_NM.clone().requires_grad_()
            head.zero_grad()
            embedding.zero_grad()
            total = loss(leaf_NM, targets_N)
            total.backward()
            tensors = (total, *(x.grad for x in (leaf_NM, *head.parameters(), embedding.weight) if x.grad is not None))
            gradients.append([tensor.detach().clone() for tensor in tensors])
        assert len(gradients[0]) >= 3
        for at_once, in_chunks in zip(*gradients, strict=True):
            torch.testing.assert_close(in_chunks, at_once, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("largest", [1e2, 1e4])
    def test_losses_and_gradients_are_right_at_extreme_logits(self, largest: float) -> None:
        head, embedding = self.head()
        hidden_NM, targets_N = self.tokens()
        weights = self.weights(head, embedding)
        spread_N = -self.naive_log_probabilities(weights, hidden_NM.numpy().astype(np.longdouble)).min(-1)
        if self.amplified is None:
            hidden_NM = hidden_NM * torch.from_numpy(largest / spread_N.astype(np.float32))[:, None]
        else:
            with torch.no_grad():
                dict(head.named_parameters())[self.amplified].mul_(largest / float(spread_N.min()))
        hidden_NM.requires_grad_()
        loss_N, total = head.loss(hidden_NM, targets_N), head.training_loss(hidden_NM, targets_N)
        total.backward()
        weights, exact_NM = self.weights(head, embedding), hidden_NM.detach().numpy().astype(np.longdouble)
        expected_N = self.naive_losses(weights, exact_NM, targets_N)
        assert self.naive_token_losses(weights, exact_NM, targets_N).max() > 0.1 * largest
        np.testing.assert_allclose(loss_N.numpy(), expected_N.astype(float), rtol=1e-5, atol=1e-5 * largest)
        expected = float(self.naive_token_losses(weights, exact_NM, targets_N).sum())
        np.testing.assert_allclose(total.detach().numpy(), expected, rtol=1e-5, atol=1e-5 * largest)
        assert bool((loss_N >= 0).all())
        for gradient in (hidden_NM.grad, *(parameter.grad for parameter in head.parameters())):
            assert bool(gradient.isfinite().all())

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_hidden_state_that_is_not_finite_gives_a_loss_that_is_not(self, value: float) -> None:
        """And no error; the other tokens' losses stay as they are."""
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        exact_N = head.loss(hidden_NM, targets_N)
        hidden_NM[2, 3] = value
        loss_N = head.loss(hidden_NM, targets_N)
        assert loss_N.isfinite().tolist() == [True, True, False, True, True, True]
        torch.testing.assert_close(loss_N[3:], exact_N[3:])
        assert not head.training_loss(hidden_NM.requires_grad_(), targets_N).detach().isfinite()

    def test_unscored_tokens_have_no_loss_and_no_gradient(self) -> None:
        """Nor a part in anything that tokens share: with and without them the others' losses are the same."""
        head, _ = self.head()
        hidden_NM, targets_N = self.tokens()
        scored_N = torch.tensor([True, True, False, True, False, True])
        apart_N = targets_N.where(scored_N, UNSCORED)
        hidden_NM.requires_grad_()
        head.training_loss(hidden_NM, apart_N).backward()
        assert bool((hidden_NM.grad[~scored_N] == 0).all())
        for loss in (head.loss, head.token_loss):
            loss_N = loss(hidden_NM, apart_N)
            assert loss_N[~scored_N].tolist() == [0.0, 0.0]
            alone_N = loss(hidden_NM[scored_N], targets_N[scored_N])
            torch.testing.assert_close(loss_N[scored_N], alone_N, rtol=1e-6, atol=1e-6)
        assert head.training_loss(hidden_NM, torch.full_like(targets_N, UNSCORED)).item() == 0.0

    def test_sizes_are_those_declared_and_those_counted_by_hand(self) -> None:
        head, _ = self.head(11)
        built = sum(parameter.numel() for parameter in head.parameters())
        assert built == self.config.parameters(11, 8) == self.parameters_of_11_by_8
        multiplications = self.config.multiplications(11, 8)
        assert multiplications == (self.multiplications_of_11_by_8 or self.parameters_of_11_by_8)

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
        assert spread == pytest.approx(self.initial_spread * 0.02 * math.sqrt(width), rel=0.15)
