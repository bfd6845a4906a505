"""How a run is stopped: running trials save their state and end, then Tune ends; a second signal does not wait."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from types import FrameType
from typing import Any

import ray

log = logging.getLogger(__name__)

STOP_SECONDS = 20.0
"""How long trials may take to save their state: less than what job managers leave between a signal and the kill."""

SIGNALS = signal.SIGINT, signal.SIGTERM


class Stopping:
    """Listens for SIGINT and SIGTERM while it is entered, and then brings a run of Tune to its end.

    Signals reach only the main thread: elsewhere nothing is installed.
    """

    def __init__(
        self,
        pause: Callable[[str], object] = lambda mailbox: ray.get_actor(mailbox).pause.remote(),
        end_tune: Callable[[], object] = lambda: signal.raise_signal(signal.SIGUSR1),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause, self._end_tune, self._clock = pause, end_tune, clock
        self._before: dict[signal.Signals, Any] = {}
        self._paused: set[str] = set()
        self._deadline: float | None = None
        self.asked = False
        """Whether the run is to end; nothing new may start."""

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()  # the next one ends the process at once

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def tick(self, mailboxes: Collection[str | None]) -> None:
        """Tell the slots of running trials to save them, and end Tune when they have; called once a stop is asked for.

        ``mailboxes`` are those of the trials that still run, None where the slot has not been heard of yet.
        """
        if self._deadline is None:
            log.warning("stopping: running trials save their state; once more ends at once")
            self._deadline = self._clock() + STOP_SECONDS
        for mailbox in {mailbox for mailbox in mailboxes if mailbox is not None} - self._paused:
            with suppress(ValueError):  # its slot is gone
                self._pause(mailbox)
            self._paused.add(mailbox)
        late = self._clock() > self._deadline
        if late and mailboxes:
            log.warning("trials that were not saved in time, and go on from an earlier state: %d", len(mailboxes))
        if late or not mailboxes:
            self._end_tune()
            self._restore()  # Tune puts back the handler of SIGINT that it found, which was this one
