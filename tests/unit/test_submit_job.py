"""Submitting to a cluster that cannot take a job yet, or never will."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray.job_submission
from rich.console import Console

from isoloss.run import submit
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
    return submit_study(str(tmp_path / "x.py"), "http://head:8265", [], follow=False, console=console)


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
