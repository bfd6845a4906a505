"""The log of a study's trials: a line of JSON for each that starts, goes on, stops or ends, and for each dead slot."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from isoloss.run.ledger import Claim, Ledger
from isoloss.study import Study

log = logging.getLogger(__name__)


class TrialLog:
    """Watches a book and its slots, and appends lines to ``file``, and to ``echo`` if there is one.

    ``known`` is how many claims the ledger had before this session: one of those goes on, a later one starts. A thread
    of its own reads the results and writes, so that neither the ledger nor the log's disk holds the driver up. A file
    that cannot be written is warned of once; the ledger has everything.
    """

    def __init__(self, study: Study, ledger: Ledger, file: Path, known: int, echo: TextIO | None = None) -> None:
        self._study, self._ledger, self._file, self._known, self._echo = study, ledger, file, known, echo
        self._claims: dict[str, Claim] = {}
        self._open: set[str] = set()
        self._where: dict[str, dict[str, Any]] = {}
        self._deaths: Counter[str] = Counter()
        self._failed = False
        self._lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="isoloss-trial-log", daemon=True)
        self._thread.start()

    # --- called by the driver

    def running(self, claim: Claim) -> None:
        again = claim.number < self._known or claim.key in self._claims
        self._claims[claim.key] = claim
        self._open.add(claim.key)
        self._say("resumed" if again else "started", claim.key)

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        pass

    def finished(self, key: str) -> None:
        self._open.discard(key)
        self._say("ended", key)
        self._where.pop(key, None)
        del self._deaths[key]

    def held(self, key: str, slot: str, node: str, deliveries: int) -> None:
        """Take note of the slot that holds a trial, its node, and how often its workers were handed the trial."""
        self._where[key] = {"slot": slot, "node": node, "deliveries": deliveries}

    def slot_died(self, key: str) -> None:
        """Take note that the slot of a trial died."""
        self._deaths[key] += 1
        self._say("slot_died", key)

    def close(self, timeout_s: float) -> None:
        """Write which trials stopped before their end, and what is left, for at most ``timeout_s`` seconds."""
        for key in sorted(self._open):
            self._say("stopped", key)
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _say(self, event: str, key: str) -> None:
        claim = self._claims.get(key)
        about = {"number": claim.number, "cell": claim.cell, "replicate": claim.replicate} if claim else {}
        self._lines.put(
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "event": event,
                "study": self._study.name,
                "trial": key,
                **about,
                **self._where.get(key, {}),
                "slot_deaths": self._deaths[key],
            }
        )

    # --- the thread

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            if line["event"] == "ended":
                try:
                    line |= self._ended(line["trial"])
                except Exception as error:  # the ledger may be away for a while; the line still says that it ended
                    line["unread"] = f"{type(error).__name__}: {error}"
            self._write(json.dumps(line, allow_nan=False))

    def _ended(self, key: str) -> dict[str, Any]:
        if not self._ledger.is_finished(key):
            why = self._ledger.unfinished().get(key, {})
            return {"event": "given_up", "state": why.get("state"), "why": why.get("reason")}
        result = self._ledger.result(key)
        curve, machine = result.curve, result.machine
        return {
            "event": "finished",
            "outcome": self._study.verdict.judge(curve),
            "ended": curve.ended,
            "steps": curve.step[-1],
            "final_loss": curve.final_loss,
            **{name: machine.get(name) for name in ("seconds", "resumed_at", "workers", "device", "hardware")},
        }

    def _write(self, line: str) -> None:
        if self._echo is not None:
            print(line, file=self._echo, flush=True)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(f"{line}\n")
        except OSError as error:
            if not self._failed:
                log.warning("the log of trials %s cannot be written: %s", self._file, error)
            self._failed = True
