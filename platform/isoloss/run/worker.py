"""What every worker of a slot runs: take a trial, train it, write its result, say so; until told to stop."""

from __future__ import annotations

import gc
import time
from typing import Any

import ray
import ray.train
import ray.train.torch
import ray.util
import torch

from isoloss.run.ledger import Ledger
from isoloss.run.mailbox import STOP
from isoloss.study import Trial
from isoloss.train.loop import Stopped, train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

IDLE_SECONDS = 10.0
"""How long workers stay without a job: the other ranks sit in a broadcast meanwhile, whose timeout is 30 minutes."""

REPORT_SECONDS = 0.5
"""Shortest time between two reports of a running trial's curve."""

PAUSE_SECONDS = 0.5
"""Time between two looks at whether the run is being stopped."""


def work(config: dict[str, Any]) -> None:
    """Train the mailbox's jobs until it says stop. ``config``: mailbox, ledger root, settings as JSON."""
    context = ray.train.get_context()
    workers = Workers(context.get_world_rank(), context.get_world_size())
    settings = Settings.model_validate_json(config["settings"])
    prepare_process(settings)
    mailbox, ledger = config["mailbox"], Ledger(config["ledger"], answered=True)  # to the driver
    if workers.rank == 0:
        mailbox.placed.remote(ray.util.get_current_placement_group().id.hex(), ray.util.get_node_ip_address())
    pause = _Pause(mailbox)
    gc.freeze()  # what was imported stays; collecting it again after every trial would cost more than a small trial
    while True:
        job = workers.from_first(ray.get(mailbox.next.remote(IDLE_SECONDS)) if workers.rank == 0 else None)
        if job == STOP:
            return
        if job is not None:
            _train_job(Trial.model_validate_json(job["trial"]), settings, workers, mailbox, ledger, pause)
            gc.collect()
            if settings.device == "cuda":
                torch.cuda.empty_cache()


def prepare_process(settings: Settings) -> None:
    """Set what decides this process's arithmetic: threads, and deterministic kernels on CUDA."""
    if settings.device == "cpu":
        torch.set_num_threads(settings.threads)
    else:
        torch.cuda.set_device(ray.train.torch.get_device())
        torch.use_deterministic_algorithms(True)


def _train_job(trial: Trial, settings: Settings, workers: Workers, mailbox: Any, ledger: Ledger, pause: _Pause) -> None:
    first = workers.rank == 0
    try:
        # A process that died between writing the result and saying so leaves a finished trial behind.
        if not workers.from_first(ledger.is_finished(trial.key) if first else None):
            reports = _Reports(mailbox, trial.key)
            result = train(
                trial,
                settings,
                workers,
                checkpoint=ledger.checkpoint(trial.key) if first else None,
                save=lambda data: ledger.save_checkpoint(trial.key, data),
                report=reports.add,
                stop=pause.asked,
            )
            if first:
                reports.flush()
                ledger.finish(result)
        if first:
            ray.get(mailbox.finished.remote(trial.key))
    except Stopped:
        if first:
            reports.flush()
            ray.get(mailbox.paused.remote(trial.key))
    except Exception as error:
        # The process must die, since CUDA and the process group may be broken: Train restarts the group.
        state = "out_of_memory" if _is_out_of_memory(error) else "lost"
        ray.get(mailbox.failed.remote(trial.key, state, f"{type(error).__name__}: {error}"[:500]))
        raise


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


class _Pause:
    """Knows whether the mailbox wants the job stopped, without waiting for an answer."""

    def __init__(self, mailbox: Any) -> None:
        self.answer = mailbox.pausing.remote()  # comes when it is wanted
        self.looked = time.monotonic()

    def asked(self) -> bool:
        now = time.monotonic()
        if now - self.looked < PAUSE_SECONDS:
            return False
        self.looked = now
        return bool(ray.wait([self.answer], timeout=0)[0]) and bool(ray.get(self.answer))


class _Reports:
    """Collects points of the curve and sends them now and then, without waiting for an answer."""

    def __init__(self, mailbox: Any, key: str) -> None:
        self.mailbox, self.key = mailbox, key
        self.points: list[dict[str, Any]] = []
        self.sent = time.monotonic()

    def add(self, point: dict[str, Any]) -> None:
        self.points.append(point)
        if time.monotonic() - self.sent >= REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        self.mailbox.points.remote(self.key, self.points)
        self.points, self.sent = [], time.monotonic()
