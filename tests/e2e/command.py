"""Drives ``isoloss`` as a user would, in processes of its own, so that tests can watch, interrupt and kill it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

MARK = "ISOLOSS_TEST_RUN"
"""Environment variable that every process of one run inherits, Ray's daemons and workers included."""

PATIENCE_SECONDS = 240.0


class Command:
    """One ``isoloss`` process with the Ray processes below it; ``environment`` may hold a mark that others share."""

    def __init__(self, *arguments: str | Path, cwd: Path, environment: Mapping[str, str] = os.environ) -> None:
        name = uuid.uuid4().hex
        self.mark = environment.get(MARK, name)
        self.log = cwd / f"isoloss-{name[:6]}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "isoloss", *map(str, arguments)],
                cwd=cwd, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**environment, MARK: self.mark, "COLUMNS": "100"},
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.end()
                print(self.output)

    def pids(self, title: str) -> list[int]:
        """Return the run's processes whose command line starts with ``title``."""
        return [pid for pid in marked(self.mark) if command_line(pid).startswith(title)]

    def kill(self, title: str) -> int:
        """Kill -9 the newest of the run's processes whose command line starts with ``title``."""
        pid = max(until(lambda: self.pids(title), f"no {title} process"))
        os.kill(pid, signal.SIGKILL)
        return pid

    def end(self) -> None:
        """Kill what is left of the run."""
        end_processes(self.mark)


def end_processes(mark: str) -> None:
    """Kill the processes that carry a mark, and no others."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def isoloss(*arguments: str | Path, cwd: Path) -> tuple[int, str]:
    """Run a command to its end and return (exit code, everything it printed)."""
    command = Command(*arguments, cwd=cwd)
    try:
        return command.wait(), command.output
    finally:
        command.end()


def until(condition: Callable[[], object], otherwise: str, seconds: float = PATIENCE_SECONDS):
    """Return the condition's value once it is true; fail with ``otherwise`` after a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(otherwise)


def free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def marked(mark: str) -> Iterator[int]:
    """Yield the ids of the processes that carry a mark."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    yield int(entry.name)
            except OSError:
                continue


def command_line(pid: int) -> str:
    """Return a process's command line, empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
