"""A lease: the right of one process to a name in an object store, which has no locks and whose clients may stall.

Who wants the lease first writes an entry of its own and then lists all entries. Since a listing shows every write that
was complete before it, of two who want it at the same time at least one sees the other, and who sees a living other
withdraws. An entry lives while its owner keeps writing it; its age is the difference of two of the store's own times,
so no clock of any machine matters. That of a process that ran here and is gone is dead at once. A holder that stalls
past its expiry may come back and still write for a moment: every holder's ``epoch`` is higher than all earlier ones,
and who reads takes what the highest wrote.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

from isoloss.run.process import gone, this_process
from isoloss.run.store import HeldError, Hold, LedgerError, Store, who

log = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
"""Time between two writes of a holder's entry."""

EXPIRY_SECONDS = 90.0
"""Age of an entry from which its owner counts as dead: more than a store's half minute of absence."""

TRIES = 5
"""Withdrawals in favour of others who want it, too, before the lease counts as held."""

ASKING, HELD, RELEASED = "asking", "held", "released"


@dataclass(frozen=True)
class Entry:
    """One process's entry: its name, its epoch, the store's time of its last writing, and what it says."""

    name: str
    epoch: int
    written: float
    state: str
    owner: str
    process: dict[str, str]

    def alive(self, now: float) -> bool:
        """Say whether its owner may live, at the store's time ``now``."""
        return self.state != RELEASED and now - self.written < EXPIRY_SECONDS and not gone(self.process)


def entries(store: Store, name: str) -> list[Entry]:
    """Return the entries of a lease, the earliest epoch first."""
    found = []
    for info in store.files(_folder(name)):
        stem = info.base_name.removesuffix(".json")
        text = store.read(f"{_folder(name)}/{stem}.json") if info.base_name != stem else None
        if text is not None:  # else it was withdrawn in between
            found.append(Entry(stem, int(stem.split("-")[0]), info.mtime.timestamp(), **json.loads(text)))
    return sorted(found, key=lambda entry: (entry.epoch, entry.name))


def holder(store: Store, name: str) -> str:
    """Return who holds the lease, or an empty text.

    The store's present time is not known to who writes nothing: an entry counts as of now by this machine's clock.
    """
    held = [entry for entry in entries(store, name) if entry.state == HELD]
    return held[-1].owner if held and held[-1].alive(time.time()) else ""


class Lease(Hold):
    """The lease of ``name`` in ``store``: a context; entering raises HeldError while another holds it."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._lost_to = ""
        self._ended = threading.Event()
        self._saying = threading.Lock()  # so that no late beat follows the release

    def __enter__(self) -> Lease:
        for turn in range(TRIES):
            others = self._ask()
            if not others:
                break
            if turn + 1 == TRIES or any(other.state == HELD for other in others):
                raise HeldError(others[-1].owner)
            self._ended.wait(random.uniform(0.2, 2.0))  # all who asked at once have withdrawn
        self._say(HELD)
        self._seen = time.monotonic()
        for entry in entries(self._store, self._name):
            if entry.epoch < self.epoch:
                self._store.delete(self._file(entry.name))
        self._beats = threading.Thread(target=self._beat, name=f"lease of {self._name}", daemon=True)
        self._beats.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if not self._lost_to:
            try:
                with self._saying:
                    self._say(RELEASED)  # the entry stays, so that the next epoch is higher
            except LedgerError as error:
                log.warning("the lease of %s could not be released (%s); it expires by itself", self._name, error)

    def check(self) -> None:
        if not self._lost_to and time.monotonic() - self._seen > 2 * BEAT_SECONDS:
            self._renew()
        if self._lost_to:
            raise HeldError(self._lost_to)

    def _ask(self) -> list[Entry]:
        """Write an entry, and return the living others, for whose sake it was withdrawn, or none: the lease is ours."""
        known = entries(self._store, self._name)
        self.epoch = max((entry.epoch for entry in known), default=0) + 1
        self._entry = f"{self.epoch:06d}-{uuid.uuid4().hex[:8]}"
        self._say(ASKING)
        seen = entries(self._store, self._name)
        now = next((entry.written for entry in seen if entry.name == self._entry), None)
        if now is None:
            raise LedgerError(f"{self._store.uri} does not list what was just written to it; it cannot hold a ledger")
        others = [entry for entry in seen if entry.name != self._entry and entry.alive(now)]
        behind = [entry for entry in seen if entry.name != self._entry and entry.epoch >= self.epoch]
        if others or behind:
            self._store.delete(self._file(self._entry))
        return others or behind

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._renew()
            except LedgerError as error:
                log.warning("the lease of %s could not be renewed: %s", self._name, error)

    def _renew(self) -> None:
        begun = time.monotonic()
        latest = [entry for entry in entries(self._store, self._name) if entry.state == HELD][-1:]
        if latest and latest[0].epoch > self.epoch:
            self._lost_to = latest[0].owner
            return
        with self._saying:
            if not self._ended.is_set():
                self._say(HELD)
                self._seen = begun

    def _say(self, state: str) -> None:
        about: dict[str, Any] = {"state": state, "owner": who(), "process": this_process()}
        self._store.write(self._file(self._entry), json.dumps(about).encode())

    def _file(self, entry: str) -> str:
        return f"{_folder(self._name)}/{entry}.json"


def _folder(name: str) -> str:
    return f"leases/{name}"
