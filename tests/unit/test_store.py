"""How long a ledger's store that is away is waited for: after a while a person should hear of a wrong address."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow.fs
import pytest

from isoloss.run import store as module
from isoloss.run.store import LedgerError, open_store


class Clock:
    """A clock that sleeping moves, and nothing else."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Full:
    """A filesystem on a disk that is full until a moment."""

    def __init__(self, clock: Clock, until: float = float("inf")) -> None:
        self.clock, self.until, self.disk = clock, until, pyarrow.fs.LocalFileSystem()

    def open_output_stream(self, path: str) -> object:
        if self.clock.now < self.until:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.disk.open_output_stream(path)

    def move(self, source: str, target: str) -> None:
        self.disk.move(source, target)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize(("answered", "least", "most"), [(False, 20, 26), (True, 180, 186)])
def test_a_store_that_has_answered_is_waited_for_longer(
    tmp_path: Path, clock: Clock, answered: bool, least: float, most: float
) -> None:
    store = open_store(tmp_path, answered)
    store.filesystem = Full(clock)
    with pytest.raises(LedgerError, match=f"cannot use the ledger at {tmp_path}: .*No space left"):
        store.write("a", b"1")
    assert least <= clock.now <= most


def test_what_passes_in_time_is_written(tmp_path: Path, clock: Clock) -> None:
    store = open_store(tmp_path, answered=True)
    store.clear_scratch()
    store.filesystem = Full(clock, until=100)
    store.write("a", b"1")
    assert open_store(tmp_path).read("a") == b"1"
    assert 100 <= clock.now <= 106
