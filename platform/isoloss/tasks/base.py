"""What every task offers to training: batches that are a pure function of (seed, step)."""

# B sequences of a batch, T positions, U units of held-out data

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

UNSCORED = -100
"""Target of a position that is not scored (torch's ``ignore_index``)."""


def share(size: int, rank: int, count: int) -> slice:
    """Return which of ``size`` sequences are worker ``rank``'s of ``count``: contiguous, and together all of them."""
    return slice(rank * size // count, (rank + 1) * size // count)


class Batch(NamedTuple):
    """Token ids: ``inputs_BT`` below the task's input vocabulary, ``targets_BT`` below V or UNSCORED."""

    inputs_BT: Tensor
    targets_BT: Tensor

    def part(self, rank: int, count: int) -> Batch:
        """Return the sequences that worker ``rank`` of ``count`` trains or evaluates, contiguous and in order."""
        part = share(len(self.inputs_BT), rank, count)
        return Batch(self.inputs_BT[part], self.targets_BT[part])


class HeldOut(NamedTuple):
    """Fixed tokens on which the loss is measured, in U units that are independent: sequences, or documents of a text.

    ``unit_BT`` says which unit a position belongs to, in no order that matters; unscored positions may say any. Of a
    text, ``bytes_U`` are its units' bytes of UTF-8 and ``unigram_nats_U`` the loss of unigrams on their tokens, summed.
    """

    batch: Batch
    unit_BT: Tensor
    bytes_U: Tensor | None = None
    unigram_nats_U: Tensor | None = None


class Data(Protocol):
    """A trial's data, the same whatever the number of workers, restarts or slots."""

    def train(self, step: int, rank: int = 0, count: int = 1) -> Batch:
        """Return what worker ``rank`` of ``count`` trains on in update ``step``, counted from 0."""

    def held_out(self) -> HeldOut:
        """Return what the loss is measured on, apart from the training data."""
