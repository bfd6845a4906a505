"""A study submitted to a cluster of its own, with its ledger in a bucket: `ray start --head`, then `isoloss submit`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import MARK, end_processes, free_port, isoloss, until
from s3_server import BUCKET, serve_s3

pytestmark = [pytest.mark.slow, pytest.mark.ray]

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
def bucket() -> Iterator[str]:
    with serve_s3():
        yield f"s3://{BUCKET}/ledgers"


@pytest.fixture
def head(bucket: str) -> Iterator[tuple[str, str]]:
    """The addresses of dashboard and cluster of a Ray head that was started for this test, and only it.

    Its environment holds the keys of the bucket, as a cluster's machines do.
    """
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


def asked(address: str) -> urllib.request.Request:
    """Return a request with the cluster's token."""
    token = (Path.home() / ".ray" / "auth_token").read_text().strip()
    return urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=2)
    except urllib.error.HTTPError as error:
        return error.code == 401  # it asks for a token, so it is there
    except OSError:
        return False
    return True


def test_a_study_is_submitted_followed_and_found_again(
    head: tuple[str, str], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard, cluster = head
    (tmp_path / "submitted.py").write_text(STUDY)
    place = ("--state", tmp_path / "state", "--ledger", bucket)
    arguments = ("submit", "submitted.py", "--address", dashboard, *place)
    secrets = ("--secret", "AWS_SECRET_ACCESS_KEY")
    code, output = isoloss(*arguments, *secrets, "--slots", "1", cwd=tmp_path)
    assert code == 0, output
    assert "learning rate" in output, "the job's map is part of its log"
    assert "succeeded" in output
    with urllib.request.urlopen(asked(f"{dashboard}/api/jobs/")) as jobs:
        assert "testing-secret" not in jobs.read().decode(), "Ray shows a job's command and environment"
    assert not list((tmp_path / "state").glob("ledger/*"))
    code, output = isoloss("status", "submitted", *place, cwd=tmp_path)
    assert code == 0
    assert "submitted: 2/2 trials, finished" in output
    code, output = isoloss("status", "submitted.py", *place, "--address", dashboard, cwd=tmp_path)
    assert code == 0, output
    assert "succeeded, submitted 20" in output
    assert "submitted: 2/2 trials, finished" in output
    code, output = isoloss("submit", "submitted.py", "--address", "http://127.0.0.1:9", cwd=tmp_path)
    assert code == 3
    assert "cannot submit to http://127.0.0.1:9" in output
    assert "Traceback" not in output
    code, output = isoloss("doctor", "--address", cluster, *place, cwd=tmp_path)
    assert code == 0, output
    assert "1 node, 2 CPU, 0 GPU" in output
    assert "ok       dashboard" in output
    assert "3 ports of 1 node can be reached" in output
    assert f"{bucket}: files are read, listed, replaced and removed" in output
    assert f"all nodes read and write {bucket}" in output
