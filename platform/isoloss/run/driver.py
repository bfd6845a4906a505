"""The driver of a study: trials from the book to the slots, by Ray Tune, until nothing is left or it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from isoloss.config.tasks import Text
from isoloss.data.shards import Shards
from isoloss.errors import IsolossError
from isoloss.run import cluster
from isoloss.run.book import Book, Summary
from isoloss.run.bridge import Bridge
from isoloss.run.placements import Placements
from isoloss.run.settings import RunSettings
from isoloss.run.slot import Slot
from isoloss.run.stopping import Stopping
from isoloss.study import Study
from isoloss.train.shares import check_sharding, micro_batches

log = logging.getLogger(__name__)

SLOT_FAILURES = 10
"""Times that a trial's slot is replaced before the trial is given up as lost."""


def check_batches(study: Study, settings: RunSettings) -> None:
    """Raise UsageError when a slot's workers cannot share out a batch of the study, or its model, as they are asked."""
    if settings.train.shard:
        check_sharding(settings.workers_per_slot)
    for trial in study.corners():
        micro_batches(trial, settings.workers_per_slot, settings.train.micro_batch)


def check_data(study: Study, folder: Path) -> None:
    """Raise DataError when a corpus of the study is not prepared in ``folder`` as the study says."""
    tasks = {trial.task for trial in study.corners() if isinstance(trial.task, Text)}
    for task in sorted(tasks, key=lambda task: (task.data.name, task.vocab_size)):
        Shards.open(folder, task.data, task.vocab_size)


def drive(
    book: Book, settings: RunSettings, address: str | None = None, tick: Callable[[Book], None] = lambda book: None
) -> Summary:
    """Run what a study lacks and return when nothing is left, or after an interrupt (SIGINT or SIGTERM).

    The caller holds the ledger (``Ledger.driver``). ``tick`` is called several times a second. Raises ClusterError
    when the cluster of ``cluster.connect(address)`` cannot hold the slots, and LedgerError when the ledger cannot be
    used any more or another driver has taken it over.
    """
    if book.done < book.plan.total:
        cluster.connect(address)
        cluster.require_room(settings)
        if settings.wait_for_nodes:
            cluster.start_coordinator()
        _tune(book, settings, tick)
    return book.settle()


def _tune(book: Book, settings: RunSettings, tick: Callable[[Book], None]) -> None:
    # Tune's and Train's own folders hold nothing that is needed again: the ledger does.
    store, stopping = book.ledger.store, Stopping()
    slot = tune.with_parameters(Slot, settings=settings.model_dump_json(), ledger=book.ledger.root)
    slot.__name__ = slot.__qualname__ = Slot.__name__  # what the dashboard and process lists show of it
    tuner = tune.Tuner(
        slot,
        tune_config=tune.TuneConfig(
            search_alg=Bridge(book, cluster.Room(settings).slots, lambda: stopping.asked),
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=book.study.name,
            storage_path=store.scratch,
            storage_filesystem=store.filesystem,
            verbose=0,
            callbacks=[_Listener(book, tick, stopping)],
            failure_config=tune.FailureConfig(max_failures=SLOT_FAILURES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a slot that dies is told below, without a traceback
    with stopping:
        try:
            tuner.fit()
        except Exception as error:
            told = _told(error)
            if told is None:
                raise
            raise told from None


def _told(error: BaseException | None) -> IsolossError | None:
    """Return what a person can mend among the causes of an error: Tune wraps what its searcher and callbacks raise."""
    while error is not None and not isinstance(error, IsolossError):
        error = error.__cause__ or error.__context__
    return error


@runtime_checkable
class SlotWatcher(Protocol):
    """A watcher of the book that also hears of the slots that hold its trials; it must neither block nor raise."""

    def held(self, key: str, slot: str, node: str, deliveries: int) -> None: ...

    def slot_died(self, key: str) -> None: ...


class _Listener(tune.Callback):
    """Carries what Tune hears from the slots to the book."""

    def __init__(self, book: Book, tick: Callable[[Book], None], stopping: Stopping) -> None:
        self.book, self.tick, self.stopping = book, tick, stopping
        self.mailboxes: dict[str, str] = {}  # of running trials, by Tune's id
        self.slot_watchers = [watcher for watcher in book.watchers if isinstance(watcher, SlotWatcher)]
        self.placements = Placements()

    def __getstate__(self) -> dict[str, Any]:  # Tune pickles its callbacks to restore experiments, which ours never are
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        for watcher in self.slot_watchers:
            watcher.held(trial.config["key"], result["slot"], result["node"], result["deliveries"])
        self.book.progress(trial.trial_id, result.get("points", []))
        self.mailboxes[trial.trial_id] = result["mailbox"]
        if result["done"]:
            del self.mailboxes[trial.trial_id]
        if result.get("placement"):
            self.placements.reported(result["mailbox"], result["placement"])

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.mailboxes.pop(trial.trial_id, None)
        self.book.ended(trial.trial_id, "lost", f"its slot failed {SLOT_FAILURES + 1} times: {trial.get_error()}"[:500])

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        log.warning("a slot died; trial %s goes on in a new one", trial.config["key"])
        self.mailboxes.pop(trial.trial_id, None)
        for watcher in self.slot_watchers:
            watcher.slot_died(trial.config["key"])
        self.placements.slot_died()

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        self.tick(self.book)
        if self.stopping.asked:
            running = [trial.trial_id for trial in trials if trial.status == TuneTrial.RUNNING]
            self.stopping.tick([self.mailboxes.get(name) for name in running])
        self.placements.free()
