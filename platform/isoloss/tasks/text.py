"""Text: documents of a prepared corpus, in an order of their own for each pass, split into sequences."""

# B sequences of a batch, T positions, N tokens, U held-out documents

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from isoloss.config.tasks import Text
from isoloss.data.order import Order
from isoloss.data.shards import Shards
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED, Batch, HeldOut, share


class TextData:
    """The sequences of one trial; see ``isoloss.Text`` for how documents become sequences.

    Raises DataError when the corpus in ``folder`` is not the one that the task names.
    """

    def __init__(self, trial: Trial, task: Text, folder: Path) -> None:
        self.trial, self.task = trial, task
        self.shards = Shards.open(folder, task.data, task.vocab_size)
        self.order = Order.of(self.shards, trial.stream("documents"))

    def train(self, step: int, rank: int = 0, count: int = 1) -> Batch:
        """Return what worker ``rank`` of ``count`` trains on in update ``step``: its sequences alone are read."""
        size, positions = self.trial.batch_size, self.task.sequence_length
        part = share(size, rank, count)
        rows, first = part.stop - part.start, step * size + part.start
        # Sequence i predicts tokens iT + 1 to iT + T of the endless stream, so that each token is predicted once.
        tokens_N = self.order.tokens(first * positions, rows * positions + 1).astype(np.int64)
        return Batch(*(torch.from_numpy(part_N.reshape(rows, positions)) for part_N in (tokens_N[:-1], tokens_N[1:])))

    def held_out(self) -> HeldOut:
        """Return the first held-out documents as one text, split into sequences; each document is a unit.

        Every token is scored once, separators too, and the last sequence is filled up with unscored positions.
        """
        held = self.shards.held_out(self.trial.evaluation.sequences)
        inputs_N, targets_N = held.tokens_N[:-1], held.tokens_N[1:]
        separator = int(held.tokens_N[0])
        unigram_U = np.bincount(held.document_N, weights=-self.shards.log_unigram_V[targets_N])
        return HeldOut(
            Batch(self._in_rows(inputs_N, separator), self._in_rows(targets_N, UNSCORED)),
            self._in_rows(held.document_N, 0),
            torch.from_numpy(held.bytes_U).double(),
            torch.from_numpy(unigram_U),
        )

    def _in_rows(self, values_N: NDArray[np.int64], fill: int) -> torch.Tensor:
        rest = -len(values_N) % self.task.sequence_length
        filled_N = np.concatenate([values_N, np.full(rest, fill, np.int64)])
        return torch.from_numpy(filled_N.reshape(-1, self.task.sequence_length))
