"""The batch script for Slurm, with all commands that it calls stood in for; tests/e2e/test_slurm.py has a real Ray."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import command_line
from slurm_commands import allocation, listens_to_interrupts, write_commands

SCRIPT = Path(__file__).parents[2] / "infra/slurm/isoloss.sbatch"

RAY = """
# Notes each start with its token, and stays until it is told to end, as `ray start --block` does.
[[ $1 == health-check ]] && exec grep --quiet "start --head" calls
echo "$SLURM_NODEID $(cat "$RAY_AUTH_TOKEN_PATH") $*" >>calls
sleep 600 & # as an agent that outlives its Ray
echo "$SLURM_NODEID agent $!" >>calls
trap 'echo "$SLURM_NODEID ended" >>calls; exit' TERM
while :; do sleep 0.05; done
"""

ISOLOSS = """
echo "isoloss $*" >>calls
trap 'sleep 0.3; echo interrupted >>calls; exit 130' INT
[[ -e code ]] && exit "$(cat code)"
while :; do sleep 0.05; done
"""


class Job:
    """One run of the script in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, random.randrange(10**8, 10**9)
        self.environment = allocation(folder, self.number)
        write_commands(folder, ray=RAY, isoloss=ISOLOSS, python=f'exec {sys.executable} "$@"\n')

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", SCRIPT, *arguments], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=listens_to_interrupts,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        noted = self.folder / "calls"
        return noted.read_text().splitlines() if noted.exists() else []

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + 60
        while not any(re.search(line, call) for call in self.calls):
            assert time.monotonic() < deadline, f"no {line!r} in {self.calls}"
            time.sleep(0.02)

    def left(self) -> list[Path]:
        return [*self.folder.glob(".isoloss-*"), *Path("/tmp").glob(f"isoloss-{self.number}-*")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    one = Job(tmp_path)
    yield one
    for folder in one.left():
        shutil.rmtree(folder)


def test_an_interrupt_reaches_the_driver_which_ends_before_ray(job: Job) -> None:
    process = job.start("x.py", "--device", "cuda")
    job.wait_for("^isoloss run")
    job.wait_for("^1 agent")
    assert [oct(path.stat().st_mode & 0o777) for path in job.left()] == ["0o700"] * 3, "the token's, and one a node"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    ends = [call for call in job.calls if call.endswith(("interrupted", "ended"))]
    assert (ends[0], sorted(ends[1:])) == ("interrupted", ["0 ended", "1 ended"])
    agents = [int(call.split()[2]) for call in job.calls if " agent " in call]
    assert len(agents) == 2
    assert not [agent for agent in agents if command_line(agent).startswith("sleep 600")]
    assert job.left() == []


def test_ray_starts_on_all_nodes_with_a_token_and_ports_of_the_job(job: Job) -> None:
    (job.folder / "code").write_text("1")
    port = 20000 + 2 * (job.number % 5000)
    process = job.start("x.py")
    process.communicate(timeout=60)
    assert process.returncode == 1, "the code of isoloss run"
    [head] = [call for call in job.calls if "start --head" in call]
    node, token, options = head.split(maxsplit=2)
    assert (node, len(token)) == ("0", 64)
    assert f"--port={port} " in options
    assert f"--dashboard-host=127.0.0.1 --dashboard-port={port + 1}" in options
    assert f"--temp-dir=/tmp/isoloss-{job.number}-0/ray " in options
    assert token not in options
    [run] = [call for call in job.calls if call.startswith("isoloss")]
    assert run == f"isoloss run --address 127.0.0.1:{port} --wait-for-nodes 5 x.py"
    assert job.left() == []


def test_a_ray_that_does_not_start_ends_the_job(job: Job) -> None:
    write_commands(job.folder, ray="exit 1\n", srun="exit 1\n")
    process = job.start("x.py")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Ray did not start on node1" in output
    assert job.left() == []


def test_a_head_that_others_cannot_reach_and_a_missing_study_are_refused(job: Job) -> None:
    job.environment["ISOLOSS_HEAD_IP"] = ""
    write_commands(job.folder, scontrol="echo localhost\n")
    process = job.start("x.py")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "the name localhost leads to '127.0.0.1' here" in output
    process = job.start()
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "usage: sbatch isoloss.sbatch STUDY [options of isoloss run]\n")
    assert job.left() == []
