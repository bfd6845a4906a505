"""Submitting to a cluster that cannot take a job yet, or never will."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ray.job_submission
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails
from rich.console import Console

from isoloss.errors import UsageError
from isoloss.run import job, submit
from isoloss.run.job import JobError, check_job, check_public, job_environment
from isoloss.run.submit import SubmitError, submit_study

REFUSAL = "Request failed with status code 500: No available agent to submit job, please try again later.."


class Cluster:
    """A cluster that refuses so many jobs with these words, and then takes one."""

    def __init__(self, refusals: int, words: str = REFUSAL) -> None:
        self.left, self.words, self.asked = refusals, words, 0

    def __call__(self, address: str) -> Cluster:
        return self

    def submit_job(self, **job: Any) -> str:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise RuntimeError(self.words)
        return "raysubmit_1"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only while the submission waits."""
    now = [0.0]
    monkeypatch.setattr(submit.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(submit.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


def submitted(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", cluster)
    console = Console(quiet=True)
    return submit_study(str(tmp_path / "x.py"), "x", "http://head:8265", [], {}, follow=False, console=console)


def test_a_cluster_that_has_just_started_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(refusals=3)
    assert submitted(cluster, tmp_path, monkeypatch)
    assert cluster.asked == 4


@pytest.mark.parametrize(("words", "asked"), [(REFUSAL, 62), ("no such runtime environment", 1)])
def test_a_refusal_that_stays_is_told(words: str, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(refusals=1000, words=words)
    with pytest.raises(SubmitError, match=f"cannot submit to http://head:8265: .*{words[-20:]}"):
        submitted(cluster, tmp_path, monkeypatch)
    assert cluster.asked == asked


def test_a_wrong_token_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(address: str) -> None:
        raise AuthenticationError("Invalid authentication token")

    with pytest.raises(SubmitError, match=r"cannot submit to http://head:8265: .*Invalid authentication token"):
        submitted(refuses, tmp_path, monkeypatch)


# --- what travels with a job


def test_a_large_folder_is_refused_before_anything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "MOST_BYTES", 1000)
    (tmp_path / "x.py").write_text("")
    (tmp_path / ".isoloss").mkdir()
    (tmp_path / ".isoloss" / "left behind").write_bytes(bytes(5000))
    cluster = Cluster(refusals=0)
    assert submitted(cluster, tmp_path, monkeypatch)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard.bin").write_bytes(bytes(2000))
    with pytest.raises(SubmitError, match=r"the largest files are data/shard.bin \(0 MiB\), x.py"):
        submitted(cluster, tmp_path, monkeypatch)
    assert cluster.asked == 1


def test_a_job_knows_its_secrets_by_name_and_never_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    environment = job_environment(["AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"], pinned=True)
    assert "hunter2" not in json.dumps(environment)
    assert environment["AWS_ENDPOINT_URL"] == "http://store:9000"
    with pytest.raises(JobError, match="machines lack MLFLOW_TRACKING_PASSWORD: set it"):
        check_job({**environment, "AWS_SECRET_ACCESS_KEY": "hunter2"})
    check_job({**environment, "AWS_SECRET_ACCESS_KEY": "hunter2", "MLFLOW_TRACKING_PASSWORD": "x"})
    check_job({})
    for word in ("A=hunter2", "hunter 2", ""):
        with pytest.raises(UsageError, match="takes the name of a variable"):
            job_environment([word], pinned=False)


def test_a_job_is_refused_by_a_cluster_of_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"python": "3.11.7", "isoloss": "0.1.0", "torch": "2.13.0+cpu", "ray": "2.60.0", "optuna": "5.0"}
    monkeypatch.setattr(job, "versions", lambda: here)
    environment = job_environment([], pinned=True)
    monkeypatch.setattr(job, "versions", lambda: {**here, "python": "3.11.9", "torch": "2.13.0+cu130"})
    check_job(environment)
    monkeypatch.setattr(job, "versions", lambda: {**here, "torch": "2.12.1", "python": "3.12.1"})
    with pytest.raises(JobError, match=r"the cluster has python 3.12, not 3.11; torch 2.12.1, not 2.13.0 as"):
        check_job(environment)
    check_job(job_environment([], pinned=False))


@pytest.mark.parametrize("word", ["http://me:hunter2@mlflow", "postgresql://me:hunter2@db/optuna"])
def test_a_password_in_a_jobs_command_is_refused(word: str) -> None:
    check_public(["--tracking-uri", "http://mlflow:5000", "--device", "cuda"])
    with pytest.raises(UsageError, match="must not hold a password") as caught:
        check_public(["--tracking-uri", word])
    assert "hunter2" not in str(caught.value)


def test_the_jobs_of_a_study_are_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(number: int, study: str) -> JobDetails:
        return JobDetails(
            type="SUBMISSION", submission_id=f"raysubmit_{number}", status="RUNNING", entrypoint="", start_time=number,
            metadata={"isoloss_study": study},
        )  # fmt: skip

    class Dashboard:
        def __init__(self, address: str) -> None:
            pass

        def list_jobs(self) -> list[JobDetails]:
            return [entry(2, "x"), entry(1, "x"), entry(3, "other")]

    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", Dashboard)
    assert [line.split(",")[0] for line in submit.jobs_of("x", "http://head:8265")] == [
        "job raysubmit_1: running", "job raysubmit_2: running"
    ]  # fmt: skip
