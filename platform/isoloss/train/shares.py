"""How a batch is shared out: equally among a slot's workers, and of each worker's share so many sequences at once."""

from __future__ import annotations

from isoloss.errors import UsageError
from isoloss.study import Trial


def micro_batches(trial: Trial, workers: int, at_once: int | None) -> int:
    """Return in how many equal parts each worker trains its share of a batch; one where ``at_once`` is None.

    Raises UsageError when workers or parts would differ in size, and where the head's loss couples all tokens of a
    batch, so that it cannot be trained in parts.
    """
    share, rest = divmod(trial.batch_size, workers)
    if rest:
        raise UsageError(
            f"a batch of {trial.batch_size} sequences is not divisible by {workers} workers a slot; "
            "change the budget's batch_size or --workers-per-slot"
        )
    if at_once is None or at_once >= share:
        return 1
    if share % at_once:
        raise UsageError(
            f"a worker's {share} sequences of a batch are not divisible into micro-batches of {at_once}; "
            f"change --micro-batch to a divisor of {share}"
        )
    if trial.head.couples_tokens:
        raise UsageError(
            f"the loss of a head of kind {trial.head.kind!r} couples all tokens of a batch, which micro-batches would "
            "tear apart; leave --micro-batch out, or share batches among more workers (--workers-per-slot)"
        )
    return share // at_once


def check_sharding(workers: int) -> None:
    """Raise UsageError when there is nobody to share a model with."""
    if workers < 2:
        raise UsageError("--shard shares a model out among the workers of a slot: add --workers-per-slot 2 or more")
