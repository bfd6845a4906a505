"""Which process this is, so that another on the same machine can tell that it is gone."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def machine() -> str:
    """Return what is the same for processes that see each other, in this boot, and for no others; empty if unknown.

    Containers of one machine may share its name and not its processes: the namespace of process ids tells them apart.
    """
    try:
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self' / 'ns' / 'pid')}"
    except OSError:
        return ""


def started(pid: int) -> str:
    """Return when a process of this machine started, in the kernel's ticks; empty when there is none, or a zombie."""
    try:
        # The name, in parentheses, may hold spaces and parentheses itself.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def this_process() -> dict[str, str]:
    """Return what ``gone`` needs of this process, as JSON values."""
    return {"machine": machine(), "pid": str(os.getpid()), "started": started(os.getpid())}


def gone(process: dict[str, str]) -> bool:
    """Say whether it is sure that a process has ended: False for those of other machines."""
    here = machine()
    return bool(here) and process["machine"] == here and started(int(process["pid"])) != process["started"]
