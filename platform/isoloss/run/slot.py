"""A slot: a reused Tune actor that owns one long-lived Ray Train worker group and hands it trial after trial."""

from __future__ import annotations

import posixpath
import threading
import uuid
from typing import Any

import ray
from ray import tune

from isoloss.run.mailbox import Mailbox
from isoloss.run.settings import SLOT_CPUS, RunSettings
from isoloss.run.store import open_store

NEWS_SECONDS = 1.0
"""How often a running trial is heard of."""

STOP_SECONDS = 30.0
"""How long an idle worker group may take to leave."""

GROUP_FAILURES = 20
"""Restarts of one worker group, and starts that found no room, before the slot itself is replaced."""


class Slot(tune.Trainable):
    """Trains the trial of its Tune configuration: one Tune trial is one isoloss trial.

    Each call of ``step`` returns the new points of the curve; the last one has ``done`` and the ``state`` in which
    the trial ended.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([{"CPU": SLOT_CPUS}])

    def setup(self, config: dict[str, Any], settings: str, ledger: str) -> None:
        self.settings = RunSettings.model_validate_json(settings)
        self.ledger = ledger
        # By this name people find the slot in Ray's dashboard: the slot itself, its mailbox and its workers' run.
        self.name = f"{posixpath.basename(ledger.partition('?')[0])}-slot-{uuid.uuid4().hex[:8]}"
        self.thread: threading.Thread | None = None
        self.given = False

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.given = False
        return True

    def __repr__(self) -> str:  # Ray asks once, when the actor is made
        return f"Slot({self.name})"

    def step(self) -> dict[str, Any]:
        if self.thread is None:
            self._start_group()
        if not self.given:
            job = {"key": self.config["key"], "trial": self.config["trial"]}
            ray.get(self.mailbox.put.remote(job))
            self.given = True
        news = ray.get(self.mailbox.news.remote(NEWS_SECONDS))
        if news.state is None and self.thread is not None and not self.thread.is_alive():
            if self.error is not None:
                raise RuntimeError(f"the slot's worker group ended: {self.error}")
            self.thread, self.given = None, False  # idle workers had left before the job came: others take it
        if news.state is not None and self.settings.isolation == "fresh":
            self._stop_group()
        return {**vars(news), "slot": self.name, "mailbox": self.mailbox_name, "done": news.state is not None}

    def cleanup(self) -> None:
        self._stop_group()

    def _start_group(self) -> None:
        # Not before: the driver knows this class, too, and has no use for torch, which takes seconds to load.
        from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        store = open_store(self.ledger)
        self.error: BaseException | None = None
        self.mailbox_name = f"{self.name}-mailbox-{uuid.uuid4().hex[:8]}"
        self.mailbox = ray.remote(num_cpus=0)(Mailbox).options(name=self.mailbox_name).remote()
        trainer = TorchTrainer(
            _work,
            train_loop_config={
                "mailbox": self.mailbox,
                "ledger": self.ledger,
                "settings": self.settings.train.model_dump_json(),
            },
            scaling_config=ScalingConfig(
                num_workers=self.settings.workers_per_slot,
                use_gpu=self.settings.train.device == "cuda",
                resources_per_worker=self.settings.worker_resources,
                placement_strategy=self.settings.placement_strategy,
            ),
            run_config=RunConfig(
                name=f"{self.name}-{self.trial_id}",
                storage_path=store.scratch,
                storage_filesystem=store.filesystem,
                failure_config=FailureConfig(max_failures=GROUP_FAILURES, controller_failure_limit=GROUP_FAILURES),
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        )
        self.thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True)
        self.thread.start()

    def _fit(self, trainer: Any) -> None:
        try:
            trainer.fit()
        except BaseException as error:  # reported by the next step
            self.error = error

    def _stop_group(self) -> None:
        if self.thread is not None:
            self.mailbox.stop.remote()
            self.thread.join(STOP_SECONDS)
            self.thread = None


def _work(config: dict[str, Any]) -> None:
    """Do a worker's work, loading what trains only there."""
    from isoloss.run.worker import work

    work(config)
