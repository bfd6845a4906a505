"""SpamLang: each sequence repeats one symbol, so that all there is to learn is V independent symbols."""

# B sequences of a batch, T positions, V vocabulary

from __future__ import annotations

import numpy as np
import torch

from isoloss.config.parts import SpamLang
from isoloss.study import Trial
from isoloss.tasks.base import Batch


class SpamLangData:
    """The sequences of one trial; see ``isoloss.SpamLang`` for what is scored."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.answers_V = answers(trial.task)

    def train(self, step: int) -> Batch:
        """Return the whole batch of update ``step``."""
        return self._batch(self.trial.stream("data", step), self.trial.batch_size)

    def held_out(self) -> Batch:
        """Return sequences of independently drawn symbols."""
        return self._batch(self.trial.stream("held out"), self.trial.evaluation.sequences)

    def _batch(self, seed: int, count: int) -> Batch:
        task = self.trial.task
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
