"""Heads that are one head in another guise train alike: full rank, no truncation, one factor held at the identity."""

# N tokens, V vocabulary, M width, D head rank

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from isoloss import AdamW, BackwardRank, Decoder, Evaluation, Linear, LowRank, SpamLang, Steps
from isoloss.model.decoder import LanguageModel
from isoloss.study import Trial
from isoloss.train.loop import Training, train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)

WIDTH = 16
OPTIMIZER = AdamW(learning_rate=0.03, weight_decay=0.1)


def trial(head: Any, optimizer: AdamW = OPTIMIZER) -> Trial:
    return Trial(
        task=SpamLang(vocab_size=8, sequence_length=4),
        model=Decoder(width=WIDTH, depth=1, attention_heads=2),
        head=head,
        optimizer=optimizer,
        budget=Steps(30, batch_size=8),
        evaluation=Evaluation(sequences=16, points=8),
    )


def curve(asked: Trial, prepare: Callable[[LanguageModel], None] = lambda model: None) -> tuple[float, ...]:
    """Return the held-out losses of a training, before which the model may be changed."""
    training = Training(asked, Settings(), Workers())
    prepare(training.bare_model)
    training.evaluate()
    while training.ended is None:
        training.update()
        if training.step in training.evaluate_after:
            training.evaluate()
    training.close()
    return tuple(training.curve["loss"])


def test_full_rank_backward_rank_trains_as_linear_to_the_last_bit() -> None:
    linear, control = (train(trial(head), Settings()) for head in (Linear(), BackwardRank(rank=WIDTH)))
    assert control.curve.loss == linear.curve.loss
    assert control.series == linear.series
    assert linear.curve.final_loss < 0.1 * linear.curve.initial_loss


def test_a_backward_rank_of_v_trains_as_linear_and_a_lower_one_otherwise() -> None:
    """The gradient (p - y) W has no higher rank than p - y, which has V columns."""
    heads = (Linear(), BackwardRank(rank=8), BackwardRank(rank=3))
    linear, of_v, of_three = (train(trial(head), Settings()).curve for head in heads)
    np.testing.assert_allclose(of_v.loss, linear.loss, rtol=1e-4, atol=1e-7)
    assert of_three.initial_loss == linear.initial_loss
    assert of_three.loss[4] > 1.01 * linear.loss[4]


def test_full_rank_low_rank_whose_inner_factor_is_held_at_the_identity_trains_as_linear() -> None:
    """A I h with A = W is W h, and so are its gradients, its weight decay and, by Adam, its updates."""

    def hold_the_identity(model: LanguageModel) -> None:
        # W's own stream, from which the linear head of the same seed draws.
        drawn = LanguageModel(trial(Linear())).head.weight_VM
        with torch.no_grad():
            model.head.out_VD.copy_(drawn)
            model.head.in_DM.copy_(torch.eye(WIDTH)).requires_grad_(False)

    linear = train(trial(Linear()), Settings()).curve.loss
    held = curve(trial(LowRank(rank=WIDTH)), hold_the_identity)
    np.testing.assert_allclose(held, linear, rtol=1e-4, atol=1e-7)


def test_full_rank_low_rank_is_linear_in_all_but_its_update() -> None:
    """With A B = W: the same losses and the same gradient by h; but dA = dW Bᵀ and dB = Aᵀ dW.

    A step s of plain gradient descent moves A B by -s (dW BᵀB + A Aᵀ dW) to first order, and W by -s dW.
    """
    low_rank, linear = (LanguageModel(trial(head)).head.double() for head in (LowRank(rank=WIDTH), Linear()))
    generator = torch.Generator().manual_seed(0)
    hidden_NM = torch.randn(10, WIDTH, generator=generator, dtype=torch.float64)
    targets_N = torch.randint(8, (10,), generator=generator)
    with torch.no_grad():
        linear.weight_VM.copy_(low_rank.out_VD @ low_rank.in_DM)
    by_hidden = []
    for head in (low_rank, linear):
        leaf_NM = hidden_NM.clone().requires_grad_()
        head.training_loss(leaf_NM, targets_N).backward()
        by_hidden.append(leaf_NM.grad)
    torch.testing.assert_close(low_rank.loss(hidden_NM, targets_N), linear.loss(hidden_NM, targets_N))
    torch.testing.assert_close(*by_hidden)

    out_VD, in_DM, by_weight_VM = low_rank.out_VD.detach(), low_rank.in_DM.detach(), linear.weight_VM.grad
    torch.testing.assert_close(low_rank.out_VD.grad, by_weight_VM @ in_DM.T)
    torch.testing.assert_close(low_rank.in_DM.grad, out_VD.T @ by_weight_VM)
    step = 1e-6
    moved_VM = (out_VD - step * low_rank.out_VD.grad) @ (in_DM - step * low_rank.in_DM.grad) - out_VD @ in_DM
    expected_VM = -step * (by_weight_VM @ in_DM.T @ in_DM + out_VD @ out_VD.T @ by_weight_VM)
    torch.testing.assert_close(moved_VM, expected_VM, rtol=1e-5, atol=1e-12)
    assert float((moved_VM + step * by_weight_VM).norm()) > 0.1 * float((step * by_weight_VM).norm())
