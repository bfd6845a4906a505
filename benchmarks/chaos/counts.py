"""What every execution of a trial did, counted by the process that trained it (``hook/sitecustomize.py``)."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Execution:
    """One process's training of one trial: when it began, the update it went on from, and the last that it made."""

    key: str
    name: str
    began_ns: int
    resumed_at: int
    step: int


def executions(folder: Path) -> list[Execution]:
    """Return every execution so far, in the order in which they began."""
    found = []
    for path in folder.iterdir():
        if not path.name.startswith("."):
            found.append(Execution(path.name.partition("-")[0], path.name, *struct.unpack("qqq", path.read_bytes())))
    return sorted(found, key=lambda one: one.began_ns)


@dataclass(frozen=True)
class Repeat:
    """An execution that went on after another of the same trial, and the updates that it made again."""

    key: str
    began_ns: int
    updates: int


def repeats(done: list[Execution]) -> list[Repeat]:
    """Return what was repeated, from executions in the order in which they began."""
    before: dict[str, int] = defaultdict(int)
    found = []
    for one in done:
        if one.key in before:
            found.append(Repeat(one.key, one.began_ns, max(before[one.key] - one.resumed_at, 0)))
        before[one.key] = max(before[one.key], one.step)
    return found
