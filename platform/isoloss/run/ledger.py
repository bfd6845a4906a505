"""The ledger: the folder that holds every claim, checkpoint and result of a study, and so the only truth about it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs

from isoloss.config.base import plain
from isoloss.errors import IsolossError
from isoloss.result import Result
from isoloss.study import SCHEMA, Cell, Study

CLAIMS, RESULTS, CHECKPOINTS, UNFINISHED = "claims", "results", "checkpoints", "unfinished"
SCRATCH = "scratch"


class LedgerError(IsolossError):
    """The ledger cannot be used as asked; the message says why and what would help."""


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


class Ledger:
    """One study's folder.

    Layout: ``study.json``; ``claims/<number>.json``, written by the driver alone; ``checkpoints/<key>.pt`` and
    ``results/<key>.arrow``, written by the trial's rank 0 alone; ``unfinished/<key>.json`` for trials that a machine
    lost. Each file is written whole or not at all, and a result's existence is what makes a trial finished.
    """

    def __init__(self, root: str | Path) -> None:
        path = str(root)
        if "://" in path and not path.startswith("file://"):
            raise LedgerError(f"a ledger is a local or shared folder, not {path!r}; object stores are not supported")
        self.root = str(Path(path.removeprefix("file://")).absolute())
        self._fs = fs.LocalFileSystem()

    @property
    def scratch(self) -> str:
        """A folder that every worker sees, for what nobody needs once its driver is gone; ``open`` empties it."""
        return f"{self.root}/{SCRATCH}"

    # --- study

    def open(self, study: Study, arithmetic: dict[str, Any]) -> None:
        """Create the folder, or adopt it; record the study and the run settings that decide its arithmetic.

        Raises LedgerError when the folder cannot be written, holds a newer schema, or holds trials that were trained
        with another device, dtype or compilation, since a map must not mix them.
        """
        try:
            for folder in (CLAIMS, RESULTS, CHECKPOINTS, UNFINISHED, SCRATCH):
                self._fs.create_dir(f"{self.root}/{folder}", recursive=True)
            self._fs.delete_dir_contents(self.scratch)
            header = self._header()
            if header is not None and header["arithmetic"] != arithmetic and self.finished():
                was, asked = (", ".join(f"{k}={v}" for k, v in a.items()) for a in (header["arithmetic"], arithmetic))
                raise LedgerError(
                    f"the trials in {self.root} were trained with {was}, and this run asks for {asked}; one map must "
                    "not mix them: use the same settings, or another --state folder"
                )
            text = json.dumps({"schema": SCHEMA, "arithmetic": arithmetic, "study": json.loads(study.to_json())})
            self._write("study.json", text.encode())
        except OSError as error:
            raise LedgerError(f"cannot write the ledger folder {self.root}: {error}") from None

    def exists(self) -> bool:
        """Say whether a study was ever opened here."""
        return self._read("study.json") is not None

    def study(self) -> Study:
        """Return the study as last opened; raises LedgerError when there is none or it is newer than this isoloss."""
        header = self._header()
        if header is None:
            raise LedgerError(f"no study in {self.root}")
        return Study.from_json(json.dumps(header["study"]))

    def _header(self) -> dict[str, Any] | None:
        data = self._read("study.json")
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
        names = sorted(self._list(CLAIMS, ".json"))
        return [Claim(**json.loads(self._must_read(f"{CLAIMS}/{name}.json"))) for name in names]

    def claim(self, number: int, key: str, cell: Cell, replicate: int, note: str = "") -> Claim:
        """Record that a trial will be run, before it is."""
        claim = Claim(number, key, plain(cell), replicate, time.time_ns() // 1_000_000, note)
        self._write(f"{CLAIMS}/{number:06d}.json", json.dumps(asdict(claim)).encode())
        return claim

    # --- results

    def finished(self) -> set[str]:
        """Return the keys of the trials that have a result."""
        return set(self._list(RESULTS, ".arrow"))

    def is_finished(self, key: str) -> bool:
        """Say whether one trial has a result."""
        return bool(self._fs.get_file_info(f"{self.root}/{RESULTS}/{key}.arrow").type == fs.FileType.File)

    def result(self, key: str) -> Result:
        """Return the result of a finished trial."""
        return Result.from_bytes(self._must_read(f"{RESULTS}/{key}.arrow"))

    def finish(self, result: Result) -> None:
        """Record a result; the trial is finished from here on, and its checkpoint is dropped."""
        self._write(f"{RESULTS}/{result.key}.arrow", result.to_bytes())
        for leftover in (f"{CHECKPOINTS}/{result.key}.pt", f"{UNFINISHED}/{result.key}.json"):
            self._delete(leftover)

    # --- what a machine lost

    def unfinished(self) -> dict[str, dict[str, str]]:
        """Return state (``lost``, ``out_of_memory``) and reason of each trial that was given up, by key."""
        return {key: json.loads(self._must_read(f"{UNFINISHED}/{key}.json")) for key in self._list(UNFINISHED, ".json")}

    def give_up(self, key: str, state: str, reason: str) -> None:
        """Record why a trial has no result; the next run tries it again."""
        self._write(f"{UNFINISHED}/{key}.json", json.dumps({"state": state, "reason": reason}).encode())

    # --- checkpoints

    def checkpoint(self, key: str) -> bytes | None:
        """Return the last checkpoint of a trial, or None."""
        return self._read(f"{CHECKPOINTS}/{key}.pt")

    def save_checkpoint(self, key: str, data: bytes) -> None:
        """Replace the checkpoint of a trial."""
        self._write(f"{CHECKPOINTS}/{key}.pt", data)

    # --- one driver

    @contextmanager
    def driver(self, study: Study, arithmetic: dict[str, Any]) -> Iterator[None]:
        """Hold the ledger as its only driver and open it for ``study``; raises what ``open`` raises.

        Raises LedgerError while another driver lives. The lock is the kernel's (flock): it ends with the process,
        however that ends.
        """
        try:
            self._fs.create_dir(self.root, recursive=True)
            lock = open(f"{self.root}/driver.lock", "a+")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise LedgerError(f"cannot write the ledger folder {self.root}: {error}") from None
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise LedgerError(
                    f"another driver is running this study ({file.read().strip() or 'starting'}); "
                    "watch it with `isoloss status`, or stop it first"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            try:
                self.open(study, arithmetic)
                yield
            finally:
                file.truncate(0)

    def driven_by(self) -> str:
        """Return which process drives the study now, or an empty text."""
        try:
            with open(f"{self.root}/driver.lock") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read().strip()
        except OSError:
            pass
        return ""

    # --- files

    def _write(self, name: str, data: bytes) -> None:
        temporary = f"{self.root}/{SCRATCH}/{uuid.uuid4().hex}"
        with self._fs.open_output_stream(temporary) as stream:
            stream.write(data)
        self._fs.move(temporary, f"{self.root}/{name}")

    def _read(self, name: str) -> bytes | None:
        try:
            with self._fs.open_input_stream(f"{self.root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def _must_read(self, name: str) -> bytes:
        data = self._read(name)
        if data is None:
            raise LedgerError(f"{self.root}/{name} is missing")
        return data

    def _list(self, folder: str, ending: str) -> list[str]:
        selector = fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        return [info.base_name.removesuffix(ending) for info in self._fs.get_file_info(selector)
                if info.base_name.endswith(ending)]  # fmt: skip

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.delete_file(f"{self.root}/{name}")
