"""What every task offers to training: batches that are a pure function of (seed, step)."""

# B sequences of a batch, T positions

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

UNSCORED = -100
"""Target of a position that is not scored (torch's ``ignore_index``)."""


class Batch(NamedTuple):
    """Token ids: ``inputs_BT`` below the task's input vocabulary, ``targets_BT`` below V or UNSCORED."""

    inputs_BT: Tensor
    targets_BT: Tensor

    def part(self, rank: int, count: int) -> Batch:
        """Return the sequences that worker ``rank`` of ``count`` trains or evaluates, contiguous and in order."""
        size = len(self.inputs_BT)
        start, end = rank * size // count, (rank + 1) * size // count
        return Batch(self.inputs_BT[start:end], self.targets_BT[start:end])


class Data(Protocol):
    """A trial's data, the same whatever the number of workers, restarts or slots."""

    def train(self, step: int) -> Batch:
        """Return the whole batch of update ``step``, counted from 0, over all workers."""

    def held_out(self) -> Batch:
        """Return the fixed sequences on which the loss is measured, drawn apart from the training data."""
