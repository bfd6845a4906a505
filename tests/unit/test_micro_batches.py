"""Micro-batches: how a batch is shared out, and that training in parts is training at once, up to rounding."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from isoloss import (
    AdamW,
    Adaptive,
    BackwardRank,
    Decoder,
    Evaluation,
    Experts,
    Linear,
    Mixture,
    Probes,
    SpamLang,
    Steps,
)
from isoloss.errors import UsageError
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED, Batch
from isoloss.tasks.spamlang import SpamLangData
from isoloss.train.loop import Training, train
from isoloss.train.settings import Settings
from isoloss.train.shares import check_sharding, micro_batches
from isoloss.train.workers import Workers

torch.set_num_threads(1)

TOLERANCE = 1e-5
"""Relative. Sums of 32 float32 terms in another order differ by some sqrt(32) 2^-24 = 3e-7, and each of 16 updates adds
that once more. Weighing a micro-batch by its own number of scored tokens changes these curves by 6e-3 and more."""


def trial(**changes: Any) -> Trial:
    parts: dict[str, Any] = {
        "task": SpamLang(vocab_size=24, sequence_length=4),
        "model": Decoder(width=16, depth=1, attention_heads=2, kv_heads=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=0.01, weight_decay=0.1),
        "budget": Steps(16, batch_size=8),
        "evaluation": Evaluation(sequences=16, points=6),
    }
    return Trial(**{**parts, **changes})


@pytest.fixture
def unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave sequence i of a batch i % 4 scored tokens of its four: the first of four has none."""
    all_scored = SpamLangData.train

    def some_scored(self: SpamLangData, step: int, rank: int = 0, count: int = 1) -> Batch:
        inputs_BT, targets_BT = all_scored(self, step)
        scored_B1 = torch.arange(len(targets_BT))[:, None] % 4
        targets_BT = targets_BT.masked_fill(torch.arange(targets_BT.shape[1]) >= scored_B1, UNSCORED)
        return Batch(inputs_BT, targets_BT).part(rank, count)

    monkeypatch.setattr(SpamLangData, "train", some_scored)


@pytest.mark.parametrize("head", [Linear(tied=True), Mixture(components=2), Adaptive()], ids=lambda h: h.kind)
@pytest.mark.usefixtures("unequal")
def test_a_batch_in_parts_trains_as_at_once(head: Any) -> None:
    at_once = train(trial(head=head), Settings())
    in_parts = train(trial(head=head), Settings(micro_batch=2))
    assert in_parts.machine["micro_batch"] == 2
    np.testing.assert_allclose(in_parts.curve.loss, at_once.curve.loss, rtol=TOLERANCE)
    for name, series in at_once.series.items():
        np.testing.assert_allclose(in_parts.series[name][1:], series[1:], rtol=10 * TOLERANCE, err_msg=name)


@pytest.mark.usefixtures("unequal")
def test_the_gradient_is_that_of_the_mean_over_all_scored_tokens() -> None:
    training = Training(trial(), Settings(micro_batch=2), Workers())
    batch = training.data.train(0)
    loss = training._backward(batch)
    model = training.bare_model
    logits_BTV = model.hidden(batch.inputs_BT) @ model.head.weight_VM.T
    mean = F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=UNSCORED)
    expected = torch.autograd.grad(mean, training.parameters)
    assert float(loss) == pytest.approx(float(mean.detach()), rel=1e-6)
    for parameter, gradient in zip(training.parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-8)


@pytest.mark.usefixtures("unequal")
def test_probes_see_the_gradient_of_the_whole_batch() -> None:
    probed = trial(budget=Steps(4, batch_size=8), evaluation=Evaluation(sequences=16, points=4, probes=Probes()))
    at_once, in_parts = (train(probed, Settings(micro_batch=size)).series for size in (None, 2))
    for group in ("embedding", "attention", "mlp", "norm", "head"):
        for name in (f"gradient_rms_{group}", f"update_rms_{group}"):
            np.testing.assert_allclose(in_parts[name][1:], at_once[name][1:], rtol=1e-3, err_msg=name)


def test_workers_and_parts_are_equal_or_refused() -> None:
    for batch_size, workers, at_once in product(range(1, 13), range(1, 5), (None, *range(1, 14))):
        asked = trial(budget=Steps(2, batch_size=batch_size))
        # (parts, sequences of each) that come to the batch: one part if it may be as large, else parts of exactly that.
        cuts = [
            (parts, size) for parts, size in product(range(1, 13), repeat=2) if parts * size * workers == batch_size
        ]
        fit = [parts for parts, size in cuts if size == at_once or (parts == 1 and (at_once is None or size < at_once))]
        if fit:
            assert [micro_batches(asked, workers, at_once)] == fit
        else:
            with pytest.raises(UsageError, match="not divisible"):
                micro_batches(asked, workers, at_once)


@pytest.mark.parametrize("head", [BackwardRank(rank=3), Experts(rank=3)], ids=lambda head: head.kind)
def test_a_head_that_couples_a_batch_is_not_trained_in_parts(head: Any) -> None:
    with pytest.raises(UsageError, match=f"'{head.kind}' couples all tokens of a batch"):
        train(trial(head=head), Settings(micro_batch=4))
    assert micro_batches(trial(head=head), 1, 8) == micro_batches(trial(head=head), 1, None) == 1
    assert micro_batches(trial(head=Experts(rank=3, balance=0.0)), 1, 4) == 2


def test_a_single_worker_has_nobody_to_share_a_model_with() -> None:
    with pytest.raises(UsageError, match="--workers-per-slot 2 or more"):
        check_sharding(1)
    check_sharding(2)
