"""SpamLang: each sequence repeats one symbol, so that all there is to learn is V independent symbols."""

# B sequences of a batch, T positions, V vocabulary

from __future__ import annotations

import numpy as np
import torch

from isoloss.config.tasks import SpamLang
from isoloss.study import Trial
from isoloss.tasks.base import Batch, HeldOut


class SpamLangData:
    """The sequences of one trial; see ``isoloss.SpamLang`` for what is scored."""

    def __init__(self, trial: Trial, task: SpamLang) -> None:
        self.trial, self.task = trial, task
        self.answers_V = answers(task)

    def train(self, step: int, rank: int = 0, count: int = 1) -> Batch:
        """Return what worker ``rank`` of ``count`` trains on in update ``step``."""
        return self._batch(self.trial.stream("data", step), self.trial.batch_size).part(rank, count)

    def held_out(self) -> HeldOut:
        """Return sequences of independently drawn symbols, each a unit."""
        batch = self._batch(self.trial.stream("held out"), self.trial.evaluation.sequences)
        return HeldOut(batch, torch.arange(len(batch.inputs_BT))[:, None].expand_as(batch.inputs_BT))

    def _batch(self, seed: int, count: int) -> Batch:
        task = self.task
        # Scaling one uniform number, rather than drawing an integer below V, gives every vocabulary size the same
        # draws: sequence i of step s sits at the same quantile of the symbols in every cell.
        uniform_B = np.random.Generator(np.random.Philox(seed)).random(count)
        symbols_B1 = torch.from_numpy((uniform_B * task.vocab_size).astype(np.int64))[:, None]
        inputs_BT = symbols_B1.repeat(1, task.positions)
        targets_BT = self.answers_V[symbols_B1].repeat(1, task.positions)
        if task.scored == "all":
            inputs_BT[:, 0] = task.vocab_size  # the start token, which is an input only
        return Batch(inputs_BT, targets_BT)


def answers(task: SpamLang) -> torch.Tensor:
    """Return the symbol that follows each symbol: itself, or its image under a permutation fixed by V alone."""
    if task.mapping == "identity":
        return torch.arange(task.vocab_size)
    return torch.from_numpy(np.random.Generator(np.random.Philox(task.vocab_size)).permutation(task.vocab_size))
