"""The held-out loss: measured on a task's fixed units, in the task's unit, with its standard error over the units."""

# B sequences, T positions, U units of held-out data

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from isoloss.tasks.base import UNSCORED, Batch, HeldOut, share
from isoloss.train.workers import Workers

LOGITS_AT_ONCE = 2**24
"""Logits held at once while measuring."""


class Meter:
    """Measures a model on held-out data, shared among the workers."""

    def __init__(self, held: HeldOut, vocab_size: int, workers: Workers, device: torch.device) -> None:
        scored_BT = held.batch.targets_BT != UNSCORED
        self.units = int(held.unit_BT.max()) + 1
        self.tokens_U = torch.bincount(held.unit_BT[scored_BT], minlength=self.units).double()
        self.bytes_U, self.unigram_nats_U = held.bytes_U, held.unigram_nats_U
        positions = held.batch.inputs_BT.shape[1]
        own = _equal_share(held, workers)
        size = max(1, LOGITS_AT_ONCE // (vocab_size * positions))
        self.parts = [
            (Batch(inputs_BT, targets_BT), unit_BT)
            for inputs_BT, targets_BT, unit_BT in zip(
                own.batch.inputs_BT.split(size), own.batch.targets_BT.split(size), own.unit_BT.split(size), strict=True
            )
        ]
        self.workers, self.device = workers, device

    @torch.no_grad()
    def measure(self, loss_of: Callable[[Tensor, Tensor], Tensor]) -> dict[str, float]:
        """Return ``loss`` and ``standard_error``, and of a text its loss in other units, by their names in results.

        ``loss_of`` returns the loss of each position in nats, 0 where it is not scored.
        """
        # Each worker adds its own rows, so that only what a unit has on two workers depends on their number.
        nats_U = torch.zeros(self.units, dtype=torch.float64, device=self.device)
        for (inputs_BT, targets_BT), unit_BT in self.parts:
            loss_BT = loss_of(inputs_BT.to(self.device), targets_BT.to(self.device))
            nats_U.index_add_(0, unit_BT.to(self.device).flatten(), loss_BT.double().flatten())
        nats_U = self.workers.sum(nats_U).cpu()
        per_token, error = ratio(nats_U, self.tokens_U)
        if self.bytes_U is None or self.unigram_nats_U is None:
            return {"loss": per_token, "standard_error": error}
        per_byte, per_byte_error = ratio(nats_U / math.log(2), self.bytes_U)
        above, above_error = ratio(nats_U - self.unigram_nats_U, self.tokens_U)
        return {
            "loss": per_byte,
            "standard_error": per_byte_error,
            "nats_per_token": per_token,
            "nats_per_token_error": error,
            "unigram_loss": above,
            "unigram_loss_error": above_error,
        }


def _equal_share(held: HeldOut, workers: Workers) -> HeldOut:
    """Return this worker's sequences, as many as every other's: where one is missing, one that is not scored.

    Workers that share a model out must run it equally often.
    """
    (inputs_BT, targets_BT), unit_BT = held.batch, held.unit_BT
    rows = len(inputs_BT)
    part = share(rows, workers.rank, workers.count)
    chosen_B = torch.arange(part.start, part.start + -(-rows // workers.count)).clamp(max=rows - 1)
    missing_B = chosen_B >= part.stop
    targets_BT = targets_BT[chosen_B].masked_fill(missing_B[:, None], UNSCORED)
    return held._replace(batch=Batch(inputs_BT[chosen_B], targets_BT), unit_BT=unit_BT[chosen_B])


def ratio(amount_U: Tensor, size_U: Tensor) -> tuple[float, float]:
    """Return the amount per size over all units, and its standard error, the units being independent and unequal.

    The error is the linearised one of a ratio of two means (Cochran 1977, section 2.11).
    """
    per_size = amount_U.sum() / size_U.sum()
    units = len(amount_U)
    spread = ((amount_U - per_size * size_U) ** 2).sum() * units / (units - 1)
    return float(per_size), float(spread.sqrt() / size_U.sum())
