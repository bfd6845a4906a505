"""The batch script for Slurm with a real Ray, on an allocation of two nodes that are both this machine."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command import MARK, command_line, end_processes, marked, until
from slurm_commands import allocation, listens_to_interrupts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.long]

SCRIPT = Path(__file__).parents[2] / "infra/slurm/isoloss.sbatch"

STUDY = """
from isoloss import AdamW, Choice, Decoder, Linear, SpamLang, Steps, Study

study = Study(
    name="batch",
    question="Does a job end in time?",
    task=SpamLang(vocab_size=16, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps(20, batch_size=8),
    axes={"optimizer.learning_rate": Choice(1e-3, 1e-2)},
    replicates=2000,
)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a batch script; what the script starts in it ends with the test."""
    environment = allocation(tmp_path, random.randrange(10**6, 10**7))
    environment = {
        **environment, MARK: uuid.uuid4().hex,
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{environment['PATH']}",
    }  # fmt: skip
    yield environment
    end_processes(environment[MARK])
    for folder in scratch(environment):
        shutil.rmtree(folder)


def scratch(job: dict[str, str]) -> list[Path]:
    return list(Path("/tmp").glob(f"isoloss-{job['SLURM_JOB_ID']}-*"))


def test_a_study_uses_all_nodes_and_ends_in_time_with_everything_that_was_started(
    job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "batch.py").write_text(STUDY)
    log = tmp_path / "job.log"
    with open(log, "w") as output:
        script = subprocess.Popen(
            ["bash", SCRIPT, "batch.py", "--state", "state"], cwd=tmp_path, env=job, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=listens_to_interrupts,
        )  # fmt: skip
    results = tmp_path / "state/ledger/batch/results"
    until(lambda: script.poll() is not None or len(list(results.glob("*.arrow"))) > 2, "no trial ended")
    assert script.poll() is None, log.read_text()

    lines = [command_line(pid) for pid in marked(job[MARK])]
    assert len([line for line in lines if "/raylet/raylet " in line]) == 2
    assert {folder.stat().st_mode & 0o777 for folder in scratch(job)} == {0o700}
    [token] = tmp_path.glob(".isoloss-*/token")
    assert (token.stat().st_mode & 0o777, token.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not [line for line in lines if token.read_text().strip() in line], "a command line shows the token"

    script.send_signal(signal.SIGINT)  # as `--signal=B:INT@120`: to the script alone
    assert script.wait(90) == 130, log.read_text()
    assert "run the same command to go on" in log.read_text()
    with suppress(AssertionError):
        until(lambda: not list(marked(job[MARK])), "", 30)
    assert [command_line(pid) for pid in marked(job[MARK])] == [], "processes were left behind"
    assert not token.parent.exists()
    assert not scratch(job)
