"""What every task must satisfy: inherit ``TaskContract`` as ``Test…`` and declare the task."""

# B sequences, T positions, V vocabulary

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoloss import AdamW, Decoder, Evaluation, Linear, LowRank, Steps, tasks
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED, Batch

torch.set_num_threads(1)


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.inputs_BT, other.inputs_BT) and torch.equal(one.targets_BT, other.targets_BT)


class TaskContract:
    """A subclass sets ``task``, of at least 50 symbols, so that equal batches are no accident.

    ``draws_held_out`` says whether each replicate draws held-out data of its own; a text's documents are fixed.
    """

    task: Any
    draws_held_out = True

    def trial(self, **changes: Any) -> Trial:
        parts = {
            "task": self.task,
            "model": Decoder(width=16, depth=1),
            "head": Linear(),
            "optimizer": AdamW(learning_rate=1e-3),
            "budget": Steps(10, batch_size=8),
            "evaluation": Evaluation(sequences=12),
        }
        return Trial(**{**parts, **changes})

    def test_batches_have_the_declared_shape_and_ids(self) -> None:
        trial = self.trial()
        data = tasks.load(trial)
        batch, held = data.train(0), data.held_out().batch
        assert len(batch.inputs_BT) == 8
        assert int((batch.targets_BT != UNSCORED).sum()) == 8 * self.task.positions
        for inputs_BT, targets_BT in (batch, held):
            assert inputs_BT.shape == targets_BT.shape
            assert inputs_BT.dtype == targets_BT.dtype == torch.int64
            assert int(inputs_BT.min()) >= 0
            assert int(inputs_BT.max()) < self.task.input_vocab_size
            scored_N = targets_BT[targets_BT != UNSCORED]
            assert int(scored_N.min()) >= 0
            assert int(scored_N.max()) < self.task.vocab_size

    def test_every_held_out_unit_has_scored_tokens(self) -> None:
        held = tasks.load(self.trial()).held_out()
        assert held.unit_BT.shape == held.batch.targets_BT.shape
        assert held.unit_BT.dtype == torch.int64
        scored_N = held.unit_BT[held.batch.targets_BT != UNSCORED]
        assert scored_N.unique().tolist() == list(range(12))

    def test_batches_are_a_pure_function_of_seed_and_step(self) -> None:
        data, again = tasks.load(self.trial()), tasks.load(self.trial())
        forwards = [data.train(step) for step in range(4)]
        torch.manual_seed(123)
        backwards = [again.train(step) for step in reversed(range(4))]
        assert all(same(one, other) for one, other in zip(forwards, reversed(backwards), strict=True))
        assert same(data.held_out().batch, again.held_out().batch)

    def test_steps_seeds_and_replicates_have_batches_of_their_own(self) -> None:
        trials = (self.trial(), self.trial(seed=1), self.trial(replicate=1))
        batches = [data.train(step) for data in map(tasks.load, trials) for step in range(2)]
        held_out = [tasks.load(trial).held_out().batch for trial in trials]
        if self.draws_held_out:
            batches += held_out
        else:
            assert same(held_out[0], held_out[1])
            assert same(held_out[0], held_out[2])
        for i, one in enumerate(batches):
            for other in batches[:i]:
                assert not torch.equal(one.inputs_BT[:8], other.inputs_BT[:8])

    @pytest.mark.parametrize(
        "changes",
        [
            {"head": LowRank(rank=2)},
            {"optimizer": AdamW(learning_rate=1.0)},
            {"model": Decoder(width=32, depth=2)},
            {"budget": Steps(99, batch_size=8)},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_cells_of_one_task_share_their_batches(self, changes: dict[str, Any]) -> None:
        one, other = tasks.load(self.trial()), tasks.load(self.trial(**changes))
        assert same(one.train(3), other.train(3))
        assert same(one.held_out().batch, other.held_out().batch)

    @pytest.mark.parametrize("workers", [1, 2, 4])
    def test_the_workers_parts_are_the_whole_in_order(self, workers: int) -> None:
        data = tasks.load(self.trial())
        parts = [data.train(5, rank, workers) for rank in range(workers)]
        joined = Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        assert same(joined, data.train(5))
        assert len({len(part.inputs_BT) for part in parts}) == 1
