"""The driver of a study: trials from the book to the slots, by Ray Tune, until nothing is left or it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from isoloss.config.tasks import Text
from isoloss.data.shards import Shards
from isoloss.errors import UsageError
from isoloss.run import cluster
from isoloss.run.book import Book, Summary
from isoloss.run.bridge import Bridge
from isoloss.run.placements import Placements
from isoloss.run.settings import RunSettings
from isoloss.run.slot import Slot
from isoloss.study import Study

log = logging.getLogger(__name__)

SLOT_FAILURES = 3
"""Times that a trial's slot is replaced before the trial is given up as lost."""


def check_batches(study: Study, workers: int) -> None:
    """Raise UsageError when a batch of the study cannot be shared out among the workers of a slot."""
    for trial in study.corners():
        if trial.batch_size % workers:
            raise UsageError(
                f"a batch of {trial.batch_size} sequences is not divisible by {workers} workers a slot; "
                "change the budget's batch_size or --workers-per-slot"
            )


def check_data(study: Study, folder: Path) -> None:
    """Raise DataError when a corpus of the study is not prepared in ``folder`` as the study says."""
    tasks = {trial.task for trial in study.corners() if isinstance(trial.task, Text)}
    for task in sorted(tasks, key=lambda task: (task.data.name, task.vocab_size)):
        Shards.open(folder, task.data, task.vocab_size)


def drive(
    book: Book, settings: RunSettings, address: str | None = None, tick: Callable[[Book], None] = lambda book: None
) -> Summary:
    """Run what a study lacks and return when nothing is left, or after an interrupt (SIGINT).

    The caller holds the ledger (``Ledger.driver``). ``tick`` is called several times a second. Raises ClusterError
    when the cluster of ``cluster.connect(address)`` cannot hold the slots.
    """
    if book.done < book.plan.total:
        cluster.connect(address)
        _tune(book, settings, cluster.fit_slots(settings), tick)
    return book.settle()


def _tune(book: Book, settings: RunSettings, slots: int, tick: Callable[[Book], None]) -> None:
    # Tune's and Train's own folders hold nothing that is needed again: the ledger does.
    storage = book.ledger.scratch
    slot = tune.with_parameters(Slot, settings=settings.model_dump_json(), ledger=book.ledger.root, storage=storage)
    tuner = tune.Tuner(
        tune.with_resources(slot, {"CPU": cluster.SLOT_CPUS}),
        tune_config=tune.TuneConfig(
            search_alg=Bridge(book), num_samples=-1, max_concurrent_trials=slots, reuse_actors=True
        ),
        run_config=tune.RunConfig(
            name=book.study.name,
            storage_path=storage,
            verbose=0,
            callbacks=[_Listener(book, tick)],
            failure_config=tune.FailureConfig(max_failures=SLOT_FAILURES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a slot that dies is told below, without a traceback
    tuner.fit()


class _Listener(tune.Callback):
    """Carries what Tune hears from the slots to the book."""

    def __init__(self, book: Book, tick: Callable[[Book], None]) -> None:
        self.book, self.tick = book, tick
        self.placements = Placements()

    def __getstate__(self) -> dict[str, Any]:  # Tune pickles its callbacks to restore experiments, which ours never are
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        self.book.progress(trial.trial_id, result.get("points", []))
        if result.get("placement"):
            self.placements.reported(result["mailbox"], result["placement"])

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.book.ended(trial.trial_id, "lost", f"its slot failed {SLOT_FAILURES + 1} times: {trial.get_error()}"[:500])

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        log.warning("a slot died; trial %s goes on in a new one", trial.config["key"])
        self.placements.slot_died()

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        self.tick(self.book)
        self.placements.free()
