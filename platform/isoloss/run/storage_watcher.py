"""Keeps an Optuna storage in step with a running study, in a thread of its own that never holds the driver up."""

from __future__ import annotations

import threading
from typing import Any

from isoloss.run.ledger import Claim, Ledger
from isoloss.run.members import Membership
from isoloss.search.storage import Ended, StoredStudy
from isoloss.study import Study

LONGEST_WAIT_S = 60.0


class StorageWatcher:
    """Adds every finished trial of the ledger to the storage at ``url``, those of earlier sessions first.

    What the storage did not take is tried again with growing pauses, and at ``close``; the next session finds what is
    missing. No method blocks or raises.
    """

    def __init__(self, study: Study, ledger: Ledger, url: str, *, every_s: float = 2.0) -> None:
        self._study, self._ledger, self._url, self._every_s = study, ledger, url, every_s
        self._members = Membership(study)
        self._claims: dict[str, Claim] = {}  # of this session
        self._changed = threading.Condition()  # guards the next two
        self._finished: list[str] = []  # since the last look
        self._closing = False
        self._stored: StoredStudy | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._work, name="isoloss-optuna", daemon=True)
        self._thread.start()

    def running(self, claim: Claim) -> None:
        self._claims[claim.key] = claim

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        pass

    def finished(self, key: str) -> None:
        with self._changed:
            self._finished.append(key)

    def close(self, timeout_s: float) -> str:
        """Add what is left, for at most ``timeout_s`` seconds, and end; return what went wrong, or an empty text."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return "it did not answer in time" if self._thread.is_alive() else self._error

    def _work(self) -> None:
        pause = self._every_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)
                closing, finished = self._closing, self._finished
                self._finished = []
            try:
                if self._stored is None:
                    self._stored = StoredStudy(self._study, self._url)
                    done = self._ledger.finished()
                    self._add(self._stored, [claim for claim in self._ledger.claims() if claim.key in done])
                else:
                    done = set(filter(self._ledger.is_finished, finished))  # not those that were given up
                    self._add(self._stored, [self._claims[key] for key in finished if key in done])
                self._error, pause = "", self._every_s
            except Exception as error:  # whatever a database's driver raises
                self._error = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
                self._stored, pause = None, min(LONGEST_WAIT_S, 2 * pause)
            if closing:
                return

    def _add(self, stored: StoredStudy, claims: list[Claim]) -> None:
        found = [(claim, self._members.find(claim)) for claim in claims if claim.key not in stored.keys]
        members = [(claim, member[0]) for claim, member in found if member is not None]
        results = self._ledger.results([claim.key for claim, _ in members])
        for (claim, cell), result in zip(members, results, strict=True):
            seconds = float(result.machine.get("seconds", 0.0))
            stored.add(Ended(claim.number, claim.key, cell, claim.replicate, claim.created_ms, seconds, result.curve))
