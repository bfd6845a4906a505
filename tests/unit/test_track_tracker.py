"""The tracker: a running study shows in MLflow, and MLflow being away costs the study nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_track_example import (
    claim_all,
    closed_address,
    database,
    history,
    points,
    result,
    runs_by_name,
    silent_server,
    study,
)  # fmt: skip

from isoloss.result import Result
from isoloss.run.ledger import Ledger
from isoloss.study import Study
from isoloss.track import tracker as module
from isoloss.track.client import TrackError, connect
from isoloss.track.fields import curve_rows
from isoloss.track.publish import publish
from isoloss.track.tracker import Tracker

pytestmark = pytest.mark.slow


def wait_for(happened: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def run_all(tracker: Tracker, ledger: Ledger, of: Study) -> float:
    """Drive every trial of the study; return the longest time that one call to the tracker took."""
    longest = 0.0

    def timed(call: Callable[..., None], *arguments: Any) -> None:
        nonlocal longest
        began = time.monotonic()
        call(*arguments)
        longest = max(longest, time.monotonic() - began)

    for claim, trial in claim_all(ledger, of):
        made = result(trial)
        timed(tracker.running, claim)
        timed(tracker.progress, claim.key, curve_rows(made)[:5])
        ledger.finish(made)
        timed(tracker.finished, claim.key)
    return longest


def test_finished_trials_appear_while_the_study_runs(tmp_path: Path) -> None:
    uri, ledger = database(tmp_path / "mlflow"), Ledger(tmp_path / "ledger")
    tracker = Tracker(study(), ledger, uri, every_s=0.1)
    run_all(tracker, ledger, study())
    wait_for(lambda: points(uri) > 1000)
    done = tracker.close(20)
    assert (done.trials, done.pending, done.error) == (16, 0, "")
    assert runs_by_name(uri)["spamlang-rank"].info.status == "FINISHED"
    before = points(uri)
    again = publish(study(), ledger, uri)
    assert (again.trials, again.written) == (16, 0)  # the two write the same
    assert points(uri) == before


def test_live_points_are_not_doubled_by_the_result(tmp_path: Path) -> None:
    uri, ledger = database(tmp_path / "mlflow"), Ledger(tmp_path / "ledger")
    (claim, trial), *_ = claim_all(ledger, study())
    made = result(trial)
    rows = curve_rows(made)
    tracker = Tracker(study(), ledger, uri, every_s=0.05, live_s=0.1)
    tracker.running(claim)
    tracker.progress(claim.key, rows[:6])
    # 6 rows with losses, 5 of them with the three series of training
    wait_for(lambda: points(uri) == 6 * 2 + 5 * 3)
    assert runs_by_name(uri)["t0000"].info.status == "RUNNING"
    tracker.progress(claim.key, rows[3:9])  # some come twice
    wait_for(lambda: points(uri) == 9 * 2 + 8 * 3)
    ledger.finish(made)
    tracker.finished(claim.key)
    tracker.close(20)
    run = runs_by_name(uri)["t0000"]
    assert run.info.status == "FINISHED"
    for name in ("eval/loss", "eval/excess"):
        told = connect(uri).get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in told] == list(zip(made.curve.step, made.curve.loss, strict=True))
    assert {timestamp for _, _, timestamp, _ in history(uri, run.info.run_id)} == {claim.created_ms}


def test_a_driver_that_died_leaves_a_run_that_the_next_one_goes_on_with(tmp_path: Path) -> None:
    uri, ledger = database(tmp_path / "mlflow"), Ledger(tmp_path / "ledger")
    (claim, trial), *_ = claim_all(ledger, study())
    made = result(trial)
    for seen in (6, 9):  # the second resumes from a checkpoint
        tracker = Tracker(study(), ledger, uri, every_s=0.05, live_s=0.1)
        tracker.running(claim)
        tracker.progress(claim.key, curve_rows(made)[:seen])
        wait_for(lambda: points(uri) >= seen * 2 + (seen - 1) * 3)  # noqa: B023
        tracker.close(20)
        assert runs_by_name(uri)["t0000"].info.status == "SCHEDULED"
    ledger.finish(made)
    publish(study(), ledger, uri)
    run = runs_by_name(uri)["t0000"]
    assert run.info.status == "FINISHED"
    assert Counter(name for name, *_ in history(uri, run.info.run_id))["eval/loss"] == len(made.curve.step)


def test_a_lost_trial_is_killed(tmp_path: Path) -> None:
    uri, ledger = database(tmp_path / "mlflow"), Ledger(tmp_path / "ledger")
    (claim, _), *_ = claim_all(ledger, study())
    tracker = Tracker(study(), ledger, uri, every_s=0.05)
    tracker.running(claim)
    ledger.give_up(claim.key, "out_of_memory", "CUDA out of memory")
    tracker.finished(claim.key)
    assert tracker.close(20).pending == 0
    run = runs_by_name(uri)["t0000"]
    assert (run.info.status, run.data.tags["isoloss.state"]) == ("KILLED", "out_of_memory: CUDA out of memory")


@pytest.mark.parametrize("where", ["closed", "silent"])
def test_a_server_that_is_away_holds_nothing_up(tmp_path: Path, where: str) -> None:
    connect(closed_address())  # load MLflow before the clock starts
    ledger = Ledger(tmp_path / "ledger")
    with silent_server() as silent:
        tracker = Tracker(study(), ledger, silent if where == "silent" else closed_address(), every_s=0.1)
        longest = run_all(tracker, ledger, study())
        time.sleep(0.5)
        began = time.monotonic()
        told = tracker.close(1.0)
        assert time.monotonic() - began < 2
    assert longest < 0.1
    assert (told.trials, told.pending) == (0, 16)
    assert told.error
    uri = database(tmp_path / "mlflow")
    assert publish(study(), ledger, uri).trials == 16
    assert len(runs_by_name(uri)) == 17


def test_a_server_that_comes_back_gets_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, ledger = database(tmp_path / "mlflow"), Ledger(tmp_path / "ledger")
    asked: list[float] = []

    def away(at: str) -> Any:
        asked.append(time.monotonic())
        if len(asked) <= 3:
            raise TrackError("the server is away")
        return connect(at)

    monkeypatch.setattr(module, "connect", away)
    tracker = Tracker(study(), ledger, uri, every_s=0.05)
    run_all(tracker, ledger, study())
    wait_for(lambda: len(asked) == 4)
    assert asked[2] - asked[1] > 1.5 * (asked[1] - asked[0]) > 0.1  # pauses grow
    done = tracker.close(20)
    assert (done.trials, done.pending, done.error) == (16, 0, "")


def test_a_lost_answer_makes_no_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    uri, ledger = database(tmp_path / "mlflow"), Ledger(tmp_path / "ledger")
    create, lost = MlflowClient.create_run, []

    def answer_lost(self: MlflowClient, *arguments: Any, **named: Any) -> Any:
        made = create(self, *arguments, **named)
        if len(lost) < 2:  # the study's run, then the first trial's
            lost.append(made)
            raise ConnectionError("timed out")
        return made

    monkeypatch.setattr(MlflowClient, "create_run", answer_lost)
    (claim, _), *_ = claim_all(ledger, study())
    tracker = Tracker(study(), ledger, uri, every_s=0.05, live_s=0.05)
    tracker.running(claim)
    wait_for(lambda: len(lost) == 2)
    assert tracker.close(20).pending == 0
    runs = runs_by_name(uri)
    assert set(runs) == {"spamlang-rank", "t0000"}
    assert runs["spamlang-rank"].data.params["replicates"] == "1"


def test_one_bad_trial_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, ledger = database(tmp_path / "mlflow"), Ledger(tmp_path / "ledger")
    bad = next(trial.key for _, trial in study().trials())
    read = Ledger.result

    def broken(self: Ledger, key: str) -> Result:
        if key == bad:
            raise OSError("the file is damaged")
        return read(self, key)

    monkeypatch.setattr(Ledger, "result", broken)
    tracker = Tracker(study(), ledger, uri, every_s=0.05)
    run_all(tracker, ledger, study())
    wait_for(lambda: points(uri) > 1000)
    done = tracker.close(20)
    assert (done.trials, done.pending) == (15, 1)
    assert "damaged" in done.error
