"""Whether a process is gone, as the kernel says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isoloss.run import process
from isoloss.run.process import gone, started, this_process


def test_this_process_is_not_gone_and_its_start_is_the_kernels() -> None:
    assert not gone(this_process())
    elapsed = float(subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True).stdout)
    up = float(Path("/proc/uptime").read_text().split()[0])
    assert int(started(os.getpid())) / os.sysconf("SC_CLK_TCK") == pytest.approx(up - elapsed, abs=2.0)


def test_a_process_that_ended_is_gone_also_before_its_parent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = {**this_process(), "pid": str(child.pid), "started": started(child.pid)}
    assert not gone(known)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
    assert gone(known)
    child.wait()
    assert gone(known)
    assert not gone({**known, "machine": "another"})
    monkeypatch.setattr(process, "machine", lambda: "")
    assert not gone({**known, "machine": ""})


def test_a_later_process_of_the_same_number_is_another() -> None:
    assert gone({**this_process(), "started": "1"})
