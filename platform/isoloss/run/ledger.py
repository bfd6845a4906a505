"""The ledger: the folder that holds every claim, checkpoint and result of a study, and so the only truth about it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from isoloss.config.base import messages, plain
from isoloss.result import Result
from isoloss.run.store import HeldError, Hold, LedgerError, open_store
from isoloss.search.boundary.course import Course
from isoloss.study import SCHEMA, Cell, Study

CLAIMS, RESULTS, CHECKPOINTS, UNFINISHED = "claims", "results", "checkpoints", "unfinished"
SPENDING = "spending"
DRIVER = "driver"


@dataclass(frozen=True)
class Claim:
    """One trial that the driver has decided to run: its place in the order, its cell and when it was claimed.

    ``note`` says what was unusual about the decision, in words.
    """

    number: int
    key: str
    cell: dict[str, Any]
    replicate: int
    created_ms: int
    note: str = ""


@dataclass(frozen=True)
class Spent:
    """Hours of a device that all sessions held, and the highest limit in hours that one of them came to."""

    hours: float
    reached: float


class Ledger:
    """One study's files, in a folder or below ``s3://bucket/prefix`` or ``gs://bucket/prefix``.

    Layout: ``study.json``; ``claims/<number>.json``, written by the driver alone; ``checkpoints/<key>.pt`` and
    ``results/<key>.arrow``, written by the trial's rank 0 alone; ``unfinished/<key>.json`` for trials that a machine
    lost; ``course.json``, what a boundary search knew last; ``spending/<session>.json``. Each file is written whole or
    not at all and ends with its hash, and a result's existence is what makes a trial finished. Any method raises
    LedgerError when the store cannot be used or a file is damaged; a store that has ``answered`` before is waited for
    longer.
    """

    def __init__(self, root: str | Path, answered: bool = False) -> None:
        self.store = open_store(root, answered)
        self._hold: Hold | None = None

    @property
    def root(self) -> str:
        """What opens this ledger again, in any process that sees its files: a path, or an address."""
        return self.store.uri

    # --- study

    def open(self, study: Study, arithmetic: dict[str, Any]) -> None:
        """Create the folder, or adopt it; record the study and the run settings that decide its arithmetic.

        Raises LedgerError when the folder cannot be written, holds a newer schema, or holds trials that were trained
        with another device, dtype or compilation, since a map must not mix them.
        """
        self.store.clear_scratch()
        header = self._header()
        if header is not None and header["arithmetic"] != arithmetic and self.finished():
            was, asked = (", ".join(f"{k}={v}" for k, v in a.items()) for a in (header["arithmetic"], arithmetic))
            raise LedgerError(
                f"the trials in {self.root} were trained with {was}, and this run asks for {asked}; one map must "
                "not mix them: use the same settings, or another --state folder"
            )
        text = json.dumps({"schema": SCHEMA, "arithmetic": arithmetic, "study": json.loads(study.to_json())})
        self.store.write("study.json", text.encode())
        for key in self.finished() & set(self.store.names(CHECKPOINTS, ".pt")):  # killed between result and removal
            self.store.delete(f"{CHECKPOINTS}/{key}.pt")

    def exists(self) -> bool:
        """Say whether a study was ever opened here."""
        return self.store.exists("study.json")

    def study(self) -> Study:
        """Return the study as last opened; raises LedgerError when there is none or it is newer than this isoloss."""
        header = self._header()
        if header is None:
            raise LedgerError(f"no study in {self.root}")
        try:
            return Study.from_json(json.dumps(header["study"]))
        except ValueError as error:  # of a newer isoloss, or written by somebody else
            said = messages(error) if isinstance(error, ValidationError) else str(error)
            raise LedgerError(f"the study in {self.root} is not one that this isoloss reads: {said}") from None

    def _header(self) -> dict[str, Any] | None:
        data = self.store.read("study.json")
        if data is None:
            return None
        header: dict[str, Any] = json.loads(data)
        if header["schema"] != SCHEMA:
            raise LedgerError(
                f"the ledger {self.root} was written under schema {header['schema']}, and this isoloss knows schema "
                f"{SCHEMA}; use the isoloss that wrote it, or another --state folder"
            )
        return header

    # --- claims

    def claims(self) -> list[Claim]:
        """Return every claim, in order."""
        latest: dict[str, tuple[int, str]] = {}  # by number: a driver that has lost its lease may still have written
        for name in self.store.names(CLAIMS, ".json"):
            number, _, epoch = name.partition(".")
            latest[number] = max(latest.get(number, (-1, "")), (int(epoch or 0), name))
        names = [f"{CLAIMS}/{name}.json" for _, (_, name) in sorted(latest.items())]
        try:
            return [Claim(**json.loads(data)) for data in self._must_read(names)]
        except (TypeError, ValueError) as error:
            raise LedgerError(f"a claim in {self.root} is not one that this isoloss reads: {error}") from None

    def claim(self, number: int, key: str, cell: Cell, replicate: int, note: str = "") -> Claim:
        """Record that a trial will be run, before it is; raises LedgerError when another driver has taken over."""
        claim = Claim(number, key, plain(cell), replicate, time.time_ns() // 1_000_000, note)
        epoch = ""
        if self._hold is not None:
            try:
                self._hold.check()
            except HeldError as error:
                raise LedgerError(
                    f"another driver ({error.holder}) has taken over this study; it goes on there"
                ) from None
            epoch = f".{self._hold.epoch}" if self._hold.epoch else ""
        self.store.write(f"{CLAIMS}/{number:06d}{epoch}.json", json.dumps(asdict(claim)).encode())
        return claim

    # --- results

    def finished(self) -> set[str]:
        """Return the keys of the trials that have a result."""
        return set(self.store.names(RESULTS, ".arrow"))

    def is_finished(self, key: str) -> bool:
        """Say whether one trial has a result."""
        return self.store.exists(_name(RESULTS, key, "arrow"))

    def result(self, key: str) -> Result:
        """Return the result of a finished trial."""
        return Result.from_bytes(next(self._must_read([_name(RESULTS, key, "arrow")])))

    def results(self, keys: Iterable[str]) -> Iterator[Result]:
        """Yield the results of finished trials, in the order of the keys; many at a time are read from a bucket."""
        return map(Result.from_bytes, self._must_read([_name(RESULTS, key, "arrow") for key in keys]))

    def finish(self, result: Result) -> None:
        """Record a result; the trial is finished from here on, and its checkpoint is dropped.

        The first result stays, should a process that was thought dead bring the trial to its end, too.
        """
        if not self.is_finished(result.key):
            self.store.write(_name(RESULTS, result.key, "arrow"), result.to_bytes())
        self.store.delete(_name(CHECKPOINTS, result.key, "pt"))
        self.store.delete(_name(UNFINISHED, result.key, "json"))

    # --- what a machine lost

    def unfinished(self) -> dict[str, dict[str, str]]:
        """Return state (``lost``, ``out_of_memory``) and reason of each trial that was given up, by key."""
        keys = self.store.names(UNFINISHED, ".json")
        found = self.store.read_all(_name(UNFINISHED, key, "json") for key in keys)
        return {key: json.loads(data) for key, data in zip(keys, found, strict=True) if data is not None}

    def give_up(self, key: str, state: str, reason: str) -> None:
        """Record why a trial has no result; the next run tries it again."""
        self.store.write(_name(UNFINISHED, key, "json"), json.dumps({"state": state, "reason": reason}).encode())

    # --- how the search goes

    def record_course(self, study: Study, course: Course) -> None:
        """Keep what the search has come to know, so that telling it takes no fit of the map."""
        self.store.write("course.json", json.dumps({"of": _digest(study), "course": course.facts()}).encode())

    def course(self, study: Study) -> Course | None:
        """Return what was recorded of the search of just this study, None where nothing was."""
        data = self.store.read("course.json")
        if data is None:
            return None
        recorded = json.loads(data)
        return Course.of_facts(recorded["course"]) if recorded["of"] == _digest(study) else None

    # --- checkpoints

    def checkpoint(self, key: str) -> bytes | None:
        """Return the last checkpoint of a trial, or None."""
        return self.store.read(_name(CHECKPOINTS, key, "pt"))

    def save_checkpoint(self, key: str, data: bytes) -> None:
        """Replace the checkpoint of a trial."""
        self.store.write(_name(CHECKPOINTS, key, "pt"), data)

    # --- what it cost

    def spent(self, device: str) -> Spent:
        """Return what all sessions have spent on a kind of device."""
        names = [f"{SPENDING}/{session}.json" for session in self.store.names(SPENDING, ".json")]
        found = [one for one in map(json.loads, self._must_read(names)) if one["device"] == device]
        return Spent(sum(one["hours"] for one in found), max((one["reached"] for one in found), default=0.0))

    def spend(self, session: str, device: str, hours: float, reached: float) -> None:
        """Replace what one session has spent, and the limit that it came to, or 0."""
        record = {"device": device, "hours": hours, "reached": reached}
        self.store.write(f"{SPENDING}/{session}.json", json.dumps(record).encode())

    # --- one driver

    @contextmanager
    def driver(self, study: Study, arithmetic: dict[str, Any]) -> Iterator[None]:
        """Hold the ledger as its only driver and open it for ``study``; raises what ``open`` raises.

        Raises LedgerError while another driver lives: in a folder the kernel knows (flock), in a bucket a lease tells.
        """
        try:
            with self.store.hold(DRIVER) as self._hold:
                self.open(study, arithmetic)
                yield
        except HeldError as error:
            raise LedgerError(
                f"another driver is running this study ({error.holder}); watch it with `isoloss status`, or stop it "
                "first"
            ) from None
        finally:
            self._hold = None

    def driven_by(self) -> str:
        """Return which process drives the study now, or an empty text."""
        return self.store.holder(DRIVER)

    # --- files

    def _must_read(self, names: list[str]) -> Iterator[bytes]:
        for name, data in zip(names, self.store.read_all(names), strict=True):
            if data is None:
                raise LedgerError(f"{self.root}/{name} is missing")
            yield data


def _digest(study: Study) -> str:
    return hashlib.sha256(study.to_json().encode()).hexdigest()


def _name(folder: str, key: str, ending: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z_-]+", key):  # of a claim that isoloss did not write
        raise LedgerError(f"{key!r} is no trial's key: letters, digits, '_' and '-' only, since it names a file")
    return f"{folder}/{key}.{ending}"
