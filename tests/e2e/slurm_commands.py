"""Stand-ins for Slurm's ``srun`` and ``scontrol``: an allocation of two nodes that are both this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

SRUN = """
# Runs a command once for each of --ntasks nodes, and passes on to all of them that they are to end.
while [[ $1 == -* ]]; do
  [[ $1 == --ntasks=* ]] && nodes=${1#*=}
  shift
done
set -m
trap 'kill "${tasks[@]}"' TERM
for ((node = 0; node < nodes; node++)); do
  SLURM_NODEID=$node "$@" &
  tasks+=($!)
done
for task in "${tasks[@]}"; do
  while kill -0 "$task" 2>/dev/null; do wait "$task"; done
done
"""

SCONTROL = """
[[ "$*" == "show hostnames node[1-2]" ]] && printf 'node1\\nnode2\\n'
"""


def write_commands(folder: Path, **commands: str) -> None:
    """Write commands, bash scripts by their names, into a folder for the search path."""
    for name, text in commands.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (folder / name).chmod(0o755)


def listens_to_interrupts() -> None:
    """Let a process notice SIGINT, as batch scripts do: started from a background job of a shell it would not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def allocation(folder: Path, job: int) -> dict[str, str]:
    """Return the environment that Slurm gives to a batch script that was submitted from ``folder``."""
    write_commands(folder, srun=SRUN, scontrol=SCONTROL)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(job),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "ISOLOSS_HEAD_IP": "127.0.0.1",
    }
