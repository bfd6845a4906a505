"""The tracker: a thread of the driver that shows a running study in MLflow, and never holds it up."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from isoloss.run.ledger import Claim, Ledger
from isoloss.run.members import Membership
from isoloss.study import Study
from isoloss.track.client import TrackError, connect, reason
from isoloss.track.mirror import Mirror, sole_writer
from isoloss.track.publish import Published

ROWS = 200
"""Live rows that are kept for a trial while MLflow is away; its result holds them all."""

LONGEST_WAIT_S = 60.0


@dataclass
class _Running:
    claim: Claim
    since: float
    rows: list[dict[str, Any]]
    sent: float = 0.0


class Tracker:
    """Shows claims, live points and finished trials in MLflow as they come.

    Every method returns at once and none raises; what MLflow did not take stays pending as a key, since the ledger
    has the data, and is tried again with growing pauses, at ``close``, and by the next ``publish``. A trial that
    finishes within ``live_s`` seconds is written once, whole; a longer one gets its run then, and new points every
    ``live_s`` seconds after.
    """

    def __init__(
        self, study: Study, ledger: Ledger, tracking_uri: str, *, live_s: float = 10.0, every_s: float = 1.0
    ) -> None:
        self._study, self._ledger, self._uri = study, ledger, tracking_uri
        self._live_s, self._every_s = live_s, every_s
        self._wake = threading.Condition()  # guards all below that both threads use
        self._running: dict[str, _Running] = {}
        self._finished: dict[str, Claim | None] = {}
        self._deadline: float | None = None
        self._error = ""
        self._mirror: Mirror | None = None
        self._shown: set[str] = set()
        self._members = Membership(study)
        self._summed = 0.0
        self._cpu_s = 0.0
        self._thread = threading.Thread(target=self._work, name="isoloss-tracker", daemon=True)
        self._thread.start()

    # --- called by the driver

    def running(self, claim: Claim) -> None:
        """Note that a trial has begun, or goes on."""
        with self._wake:
            self._running[claim.key] = _Running(claim, time.monotonic(), [])

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        """Note new points of a running trial: ``step``, ``loss`` and the other columns of its curve.

        They must be the numbers that its result will hold, since points in MLflow cannot be taken back.
        """
        with self._wake:
            running = self._running.get(key)
            if running is not None:
                running.rows = [*running.rows, *rows][-ROWS:]

    def finished(self, key: str) -> None:
        """Note that a trial is over: it has a result in the ledger, or was given up there."""
        with self._wake:
            running = self._running.pop(key, None)
            self._finished[key] = running.claim if running else None

    def close(self, timeout_s: float) -> Published:
        """Try once more to write what is pending, for at most ``timeout_s`` seconds, and end the thread."""
        with self._wake:
            self._deadline = time.monotonic() + timeout_s
            self._wake.notify_all()
        self._thread.join(timeout_s)
        with self._wake:
            pending = len(self._finished.keys() | self._running.keys())
            mirror, shown, error = self._mirror, len(self._shown), self._error
        experiment, run = (mirror.experiment_id, mirror.parent_id) if mirror else ("", "")
        if self._thread.is_alive() and not error:
            error = f"MLflow at {self._uri} did not answer in time"
        return Published(self._study, self._uri, experiment, run, shown, shown, pending, 0, error, self._cpu_s)

    # --- the thread

    def _work(self) -> None:
        with self._wake:
            # While the driver imports Ray, an import of MLflow in this thread can come upon modules half made.
            while self._deadline is None and not (self._running or self._finished):
                self._wake.wait(self._every_s)
        pause, locked = self._every_s, False
        with ExitStack() as stack:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._deadline is not None, pause)
                    closing = self._deadline is not None
                shown = len(self._shown)
                try:
                    if not locked:
                        stack.enter_context(sole_writer(self._ledger, self._uri))
                        locked = True
                    if self._mirror is None or self._mirror.doubtful:
                        self._mirror = Mirror(connect(self._uri), self._study, self._ledger, self._uri)
                    self._write(self._mirror, closing)
                    self._error = self._mirror.artifact_error
                    pause = self._every_s
                except Exception as error:  # a thread that dies would end the view for good
                    self._error = reason(error)
                    pause = self._every_s if len(self._shown) > shown else min(LONGEST_WAIT_S, 2 * pause)
                self._cpu_s = time.thread_time()
                if closing:
                    return

    def _write(self, mirror: Mirror, closing: bool) -> None:
        with self._wake:
            finished, running = dict(self._finished), dict(self._running)
        for key, claim in finished.items():
            try:
                self._settle(mirror, key, claim)
            except Exception:
                with self._wake:  # to the end of the line, so that one trial cannot hold up the others
                    self._finished[key] = self._finished.pop(key)
                raise
            with self._wake:
                self._finished.pop(key, None)
        if closing:
            for key, trial in running.items():
                self._settle(mirror, key, trial.claim)
                with self._wake:
                    self._running.pop(key, None)
            mirror.summarize("FINISHED" if mirror.complete else "SCHEDULED")
            return
        now = time.monotonic()
        for trial in running.values():
            if now - max(trial.since, trial.sent) >= self._live_s:
                self._show(mirror, trial)
                trial.sent = now
        if finished and now - self._summed >= self._live_s:
            mirror.summarize("RUNNING")
            self._summed = now

    def _settle(self, mirror: Mirror, key: str, claim: Claim | None) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TrackError(f"MLflow at {self._uri} took too long")
        if claim is None:
            claim = next((claim for claim in self._ledger.claims() if claim.key == key), None)
        member = self._members.find(claim) if claim is not None else None
        if claim is not None and member is not None:
            mirror.settle(claim, *member)
            self._shown.add(key)

    def _show(self, mirror: Mirror, running: _Running) -> None:
        member = self._members.find(running.claim)
        if member is None:
            return
        cell, trial = member
        mirror.start(running.claim, cell, trial)
        with self._wake:
            rows, running.rows = running.rows, []
        try:
            mirror.progress(running.claim, trial, rows)
        except Exception:
            with self._wake:
                running.rows = [*rows, *running.rows][-ROWS:]
            raise
