"""The held-out loss and its standard error against formulas written out, for any number of workers."""

# B sequences, T positions, U units of held-out data

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from isoloss.tasks.base import UNSCORED, Batch, HeldOut
from isoloss.train.held_out import Meter, ratio
from isoloss.train.workers import Workers

V = 11
CPU = torch.device("cpu")


class Ranks(Workers):
    """One of several workers that run one after another: the first leaves its sums to the next."""

    def sum(self, tensor: Tensor) -> Tensor:
        total = getattr(Ranks, "left", torch.zeros_like(tensor)) + tensor
        Ranks.left = total
        return total


def text(rows: int = 6, positions: int = 5, units: int = 4) -> HeldOut:
    generator = np.random.default_rng(3)
    targets = generator.integers(V, size=rows * positions)
    targets[-3:] = UNSCORED
    unit = np.sort(generator.integers(units, size=rows * positions))
    unit[:units] = range(units)
    batch = Batch(torch.zeros(rows, positions, dtype=torch.int64), torch.tensor(targets).view(rows, positions))
    bytes_U, unigram_U = torch.tensor([9.0, 20.0, 14.0, 31.0]).double(), torch.tensor([3.0, 8.0, 5.0, 11.0]).double()
    return HeldOut(batch, torch.tensor(unit).view(rows, positions), bytes_U, unigram_U)


def loss_of(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    return torch.where(targets_BT == UNSCORED, 0.0, torch.sin(targets_BT.float()) + 2)


def test_losses_in_every_unit_by_hand() -> None:
    held = text()
    found = Meter(held, V, Workers(), CPU).measure(loss_of)
    targets, unit = held.batch.targets_BT.flatten().tolist(), held.unit_BT.flatten().tolist()
    nats = [sum(math.sin(t) + 2 for t, u in zip(targets, unit, strict=True) if u == unit_ and t != UNSCORED)
            for unit_ in range(4)]  # fmt: skip
    tokens = [sum(t != UNSCORED and u == unit_ for t, u in zip(targets, unit, strict=True)) for unit_ in range(4)]
    assert sum(tokens) == 27
    assert found["nats_per_token"] == pytest.approx(sum(nats) / 27, rel=1e-6)
    assert found["loss"] == pytest.approx(sum(nats) / (74 * math.log(2)), rel=1e-6)
    assert found["unigram_loss"] == pytest.approx((sum(nats) - 27) / 27, rel=1e-6)
    r = sum(nats) / 27
    squares = sum((n - r * t) ** 2 for n, t in zip(nats, tokens, strict=True))
    assert found["nats_per_token_error"] == pytest.approx(math.sqrt(squares * 4 / 3) / 27, rel=1e-5)


def test_the_workers_together_measure_what_one_does() -> None:
    whole = Meter(text(), V, Workers(), CPU).measure(loss_of)
    Ranks.left = torch.zeros(4, dtype=torch.float64)
    for rank in range(3):
        found = Meter(text(), V, Ranks(rank, 3), CPU).measure(loss_of)
    assert found == pytest.approx(whole, rel=1e-14)


def test_equal_units_have_the_error_of_a_mean() -> None:
    amounts = torch.tensor([1.0, 4.0, 2.0, 9.0, 3.0]).double()
    mean, error = ratio(amounts, torch.full((5,), 7.0).double())
    assert mean == pytest.approx(float(amounts.mean()) / 7)
    assert error == pytest.approx(float(amounts.std()) / 7 / math.sqrt(5))


def test_the_error_of_unequal_units_is_that_of_draws() -> None:
    """Over 4,000 samples of 60 units, the mean of the stated errors is the ratio's own scatter."""
    generator = np.random.default_rng(0)
    size = generator.gamma(2.0, 100.0, size=(4000, 60))
    amount = size * (3 + generator.normal(0, 0.5, size=size.shape)) + generator.normal(0, 20, size=size.shape)
    found = [ratio(torch.from_numpy(a), torch.from_numpy(s)) for a, s in zip(amount, size, strict=True)]
    scatter = np.std([per for per, _ in found])
    assert np.mean([error for _, error in found]) == pytest.approx(scatter, rel=0.05)
