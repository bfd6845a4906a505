"""A study submitted to a cluster of its own: `ray start --head`, then `isoloss submit`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import MARK, end_processes, isoloss, until

pytestmark = pytest.mark.slow

STUDY = """
from isoloss import AdamW, Choice, Decoder, Linear, SpamLang, Steps, Study

study = Study(
    name="submitted",
    question="Does a job find its way?",
    task=SpamLang(vocab_size=16, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps(20, batch_size=8),
    axes={"optimizer.learning_rate": Choice(1e-3, 1e-2)},
)
"""


@pytest.fixture
def head() -> Iterator[tuple[str, str]]:
    """The addresses of dashboard and cluster of a Ray head that was started for this test, and only it."""
    mark, folder = uuid.uuid4().hex, tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets need a short path
    gcs, board, agent = (
        free_port(),
        free_port(),
        free_port(),
    )  # a Ray that has hardly gone may still hold the usual ones
    ray = Path(sys.executable).with_name("ray")
    process = subprocess.Popen(
        [ray, "start", "--head", "--block", f"--port={gcs}", f"--dashboard-port={board}",
         f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}", "--num-cpus=2", "--disable-usage-stats"],
        # Jobs run the `python` of the head's path: it must be the one with Ray and isoloss's dependencies.
        env={**os.environ, MARK: mark, "PATH": f"{ray.parent}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{board}"
    try:
        until(lambda: process.poll() is not None or answers(address), "Ray's dashboard did not come up", 120)
        assert process.poll() is None, "ray start ended"
        yield address, f"127.0.0.1:{gcs}"
    finally:
        end_processes(mark)
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=2)
    except urllib.error.HTTPError as error:
        return error.code == 401  # it asks for a token, so it is there
    except OSError:
        return False
    return True


def test_a_study_is_submitted_followed_and_found_again(head: tuple[str, str], tmp_path: Path) -> None:
    dashboard, cluster = head
    (tmp_path / "submitted.py").write_text(STUDY)
    arguments = ("submit", "submitted.py", "--address", dashboard, "--state", tmp_path / "state")
    code, output = isoloss(*arguments, "--slots", "1", cwd=tmp_path)
    assert code == 0, output
    assert "learning rate" in output, "the job's map is part of its log"
    assert "succeeded" in output
    code, output = isoloss("status", "submitted", "--state", tmp_path / "state", cwd=tmp_path)
    assert code == 0
    assert "submitted: 2/2 trials, finished" in output
    (tmp_path / "submitted.py").write_text(STUDY.replace('name="submitted"', 'name="too-large"'))
    code, output = isoloss(*arguments, "--workers-per-slot", "8", cwd=tmp_path)
    assert code == 1
    assert "1 slot of 8 workers need 7.25 CPU, and the cluster has 2 CPU" in output
    code, output = isoloss("submit", "submitted.py", "--address", "http://127.0.0.1:9", cwd=tmp_path)
    assert code == 3
    assert "cannot submit to http://127.0.0.1:9" in output
    assert "Traceback" not in output
    code, output = isoloss("doctor", "--address", cluster, "--state", tmp_path / "state", cwd=tmp_path)
    assert code == 0, output
    assert "1 node, 2 CPU, 0 GPU" in output
    assert f"all nodes read and write {tmp_path / 'state'}" in output
