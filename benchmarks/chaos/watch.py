"""Watches the results of a ledger from outside: a result that appears must stay, and stay the same to the byte."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import PurePosixPath
from typing import Any

from isoloss.run.ledger import RESULTS, Ledger
from isoloss.run.store import LedgerError

LOOK_S = 1.0


class Watch:
    """A thread that lists the results again and again, and reads those that are new or were written since.

    A result holds how long its training took: the same trial trained twice gives other bytes.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ended: dict[str, float] = {}  # by key: when its result was first seen (time.monotonic)
        self.broken: list[str] = []
        self._ledger, self._looking, self._over = ledger, threading.Lock(), threading.Event()
        self._seen: dict[str, tuple[Any, str]] = {}  # by key: when it was written, and the hash of its bytes
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def look(self, at_all: bool = False) -> None:
        """Look once, ``at_all`` results or at what seems new; raises LedgerError while the store is away."""
        with self._looking:
            written = {PurePosixPath(info.path).stem: info.mtime_ns for info in self._ledger.store.files(RESULTS)}
            self.broken += [f"the result of {key} vanished" for key in self._seen.keys() - written.keys()]
            for key, when in written.items():
                if at_all or self._seen.get(key, (None, ""))[0] != when:
                    self._read(key, when)

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(10)  # longer only while the store is away

    def _read(self, key: str, when: Any) -> None:
        data = self._ledger.store.read(f"{RESULTS}/{key}.arrow")
        digest = hashlib.sha256(data or b"").hexdigest()
        if key not in self._seen:
            self.ended[key] = time.monotonic()
        elif self._seen[key][1] != digest:
            self.broken.append(f"the result of {key} changed")
        self._seen[key] = when, digest

    def _work(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self.look()
            except LedgerError:  # the store is away
                continue
