"""Publishing a ledger: MLflow holds what the ledger says, once, whatever was there before."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_track_example import (
    claim_all,
    closed_address,
    database,
    filled,
    history,
    points,
    result,
    runs_by_name,
    silent_server,
    study,
)  # fmt: skip

from isoloss import Choice, Log, Verdict
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.track.client import BusyError, TrackError, connect
from isoloss.track.mirror import Mirror, sole_writer
from isoloss.track.publish import lookup, publish

pytestmark = pytest.mark.slow


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return database(tmp_path / "mlflow")


def test_every_trial_has_one_run_with_its_state(tmp_path: Path, uri: str) -> None:
    done = publish(study(), filled(tmp_path / "ledger"), uri)
    assert (done.trials, done.written, done.pending, done.error) == (16, 16, 0, "")
    runs = runs_by_name(uri)
    assert set(runs) == {"spamlang-rank", *(f"t{number:04d}" for number in range(16))}
    parent = runs.pop("spamlang-rank")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert Counter(run.info.status for run in runs.values()) == {"FINISHED": 14, "KILLED": 1, "SCHEDULED": 1}
    assert runs["t0014"].data.tags["isoloss.state"] == "lost: the worker's node went away three times"
    assert Counter(run.data.tags.get("isoloss.outcome", "") for run in runs.values()) == {
        "undertrained": 4, "plateaued": 4, "converged": 3, "diverged": 1, "nonfinite": 2, "": 2,
    }  # fmt: skip
    assert parent.data.metrics["study/finished"] == 14
    assert parent.data.metrics["study/nonfinite"] == 2
    assert parent.data.params["space/head.rank"] == "4, 8"
    assert parent.info.status == "SCHEDULED"
    for run in runs.values():
        assert all(math.isfinite(value) for value in run.data.metrics.values())
        assert len(run.data.metrics) < 30


def test_publishing_twice_adds_nothing(tmp_path: Path, uri: str) -> None:
    ledger = filled(tmp_path / "ledger")
    publish(study(), ledger, uri)
    client, before = connect(uri), points(uri)
    tags = client.get_experiment_by_name("spamlang-rank").tags  # type: ignore[union-attr]
    again = publish(study(), ledger, uri)
    assert (again.trials, again.written) == (16, 0)
    assert points(uri) == before
    assert client.get_experiment_by_name("spamlang-rank").tags == tags  # type: ignore[union-attr]
    assert len([key for key in tags if key.startswith("mlflow.sharedViewState.")]) == 3


def test_an_axis_longer_than_a_param_keeps_its_study_one_run(tmp_path: Path, uri: str) -> None:
    rates = Choice(*(1e-3 + 1e-6 * i for i in range(1, 1000)))
    long, ledger = study(axes={"optimizer.learning_rate": rates}), Ledger(tmp_path / "ledger")
    ledger.open(long, {"device": "cpu"})
    assert publish(long, ledger, uri).run_id == publish(long, ledger, uri).run_id
    kept = runs_by_name(uri)["spamlang-rank"].data.params["space/optimizer.learning_rate"]
    assert kept.startswith("0.001001, 0.001002, ")
    assert (len(kept), kept[-1]) == (6000, "…")


def test_a_run_left_half_written_is_completed(tmp_path: Path, uri: str) -> None:
    ledger, of = filled(tmp_path / "ledger"), study()
    mirror = Mirror(connect(uri), of, ledger, uri)
    (claim, cell, trial), *_ = members(of, ledger.claims())
    mirror.start(claim, cell, trial)  # and then the driver died
    curve = result(trial).curve
    mirror.progress(claim, trial, [{"step": curve.step[i], "loss": curve.loss[i]} for i in range(5)])
    publish(of, ledger, uri)
    run = runs_by_name(uri)["t0000"]
    assert run.info.status == "FINISHED"
    losses = [point for point in history(uri, run.info.run_id) if point[0] == "eval/loss"]
    assert [(step, loss) for _, step, _, loss in losses] == list(zip(curve.step, curve.loss, strict=True))


def test_a_whole_run_is_what_the_client_would_have_written(tmp_path: Path) -> None:
    ledger, of = filled(tmp_path / "ledger", lost=0, waiting=0), study()
    whole, plain = database(tmp_path / "whole"), database(tmp_path / "plain")
    for uri in (whole, plain):
        mirror = Mirror(connect(uri), of, ledger, uri)
        assert mirror._whole is not None, "MLflow's tables have changed: see isoloss.track.whole"
        if uri is plain:
            mirror._whole = None
        for claim, cell, trial in members(of, ledger.claims()):
            mirror.settle(claim, cell, trial)

    ids = ("mlflow.parentRunId", "isoloss.published")  # the second is a digest of the first, among others

    def told(uri: str) -> dict[str, Any]:
        return {
            name: (
                run.data.params,
                run.data.metrics,
                {key: value for key, value in run.data.tags.items() if key not in ids},
                history(uri, run.info.run_id),
                {**dict(run.info), "run_id": "", "run_uuid": "", "artifact_uri": "", "experiment_id": ""},
                run.info.artifact_uri.replace(run.info.run_id, "RUN").replace("/whole/", "/plain/"),
            )
            for name, run in runs_by_name(uri).items()
            if name != of.name
        }

    left, right = told(whole), told(plain)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name] == right[name]


def test_a_new_verdict_changes_outcomes_and_no_numbers(tmp_path: Path, uri: str) -> None:
    ledger = filled(tmp_path / "ledger", lost=0, waiting=0)
    publish(study(), ledger, uri)
    before = {name: (run.info.run_id, history(uri, run.info.run_id)) for name, run in runs_by_name(uri).items()}
    stricter = study(verdict=Verdict(converged_below=1e-9, still_falling=0.1))
    assert publish(stricter, ledger, uri).written == 4
    runs = runs_by_name(uri)
    parent = runs.pop("spamlang-rank")
    assert "converged" not in {run.data.tags["isoloss.outcome"] for run in runs.values()}
    assert all(before[name] == (run.info.run_id, history(uri, run.info.run_id)) for name, run in runs.items())
    assert (parent.data.metrics["study/converged"], parent.data.metrics["study/plateaued"]) == (0, 8)
    assert '"converged_below":1e-09' in parent.data.tags["isoloss.verdict"]
    assert parent.info.status == "FINISHED"


def test_a_new_space_moves_its_trials_and_retires_the_rest(tmp_path: Path, uri: str) -> None:
    ledger = filled(tmp_path / "ledger", lost=0, waiting=0)
    publish(study(), ledger, uri)
    old = runs_by_name(uri)["spamlang-rank"].info.run_id
    rates = Log(1e-4, 1e-1, points=4)
    only_rank_8 = study(axes={"task.vocab_size": Choice(64, 256), "optimizer.learning_rate": rates})
    assert publish(only_rank_8, ledger, uri).trials == 8
    runs = runs_by_name(uri)
    parent = runs.pop("spamlang-rank")
    kinds = Counter(run.data.tags["isoloss.kind"] for run in runs.values())
    assert kinds == {"trial": 8, "former trial": 8}
    assert parent.info.run_id != old
    assert parent.data.metrics["study/finished"] == 8
    assert all(
        run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        for run in runs.values() if run.data.tags["isoloss.kind"] == "trial"
    )  # fmt: skip
    assert publish(study(), ledger, uri).trials == 16
    assert Counter(run.data.tags["isoloss.kind"] for run in runs_by_name(uri).values()) == {"trial": 16, "study": 1}


def test_other_numbers_under_the_same_key_replace_the_run(tmp_path: Path, uri: str) -> None:
    ledger, of = filled(tmp_path / "ledger"), study()
    publish(of, ledger, uri)
    old = runs_by_name(uri)["t0000"].info.run_id
    _, trial = next(iter(of.trials()))
    made = result(trial)
    ledger.store.delete(f"results/{trial.key}.arrow")  # as a person might; the ledger itself keeps the first result
    ledger.finish(type(made)(made.key, made.trial, made.curve, made.series, {**made.machine, "seconds": 9.0}))
    assert publish(of, ledger, uri).written == 1
    run = runs_by_name(uri)["t0000"]
    assert run.info.run_id != old
    assert [value for name, _, _, value in history(uri, run.info.run_id) if name == "result/seconds"] == [9.0]


def test_waiting_and_lost_trials_are_finished_later(tmp_path: Path, uri: str) -> None:
    ledger, of = filled(tmp_path / "ledger", lost=2, waiting=2), study()
    publish(of, ledger, uri)
    ids = {name: run.info.run_id for name, run in runs_by_name(uri).items()}
    for _, trial in of.trials():
        if trial.key not in ledger.finished():
            ledger.finish(result(trial))
    assert publish(of, ledger, uri).written == 4
    runs = runs_by_name(uri)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {name: run.info.run_id for name, run in runs.items()} == ids


def test_trials_stay_running_while_a_driver_lives(tmp_path: Path, uri: str) -> None:
    ledger = filled(tmp_path / "ledger")
    code = (
        "import sys; from isoloss.run.ledger import Ledger; ledger = Ledger(sys.argv[1])\n"
        "with ledger.driver(ledger.study(), {'device': 'cpu'}): print('driving', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, ledger.root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        publish(study(), ledger, uri)
        assert runs_by_name(uri)["t0015"].info.status == "RUNNING"
        driver.communicate()
    with ledger.driver(study(), {"device": "cpu"}):  # this process drives, and publishes at its end
        publish(study(), ledger, uri)
    assert runs_by_name(uri)["t0015"].info.status == "SCHEDULED"


def test_artifacts_lie_beside_the_database(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    maps = tmp_path / "report" / "maps"
    maps.mkdir(parents=True)
    (maps / "boundary.html").write_text("<p>map</p>")
    (tmp_path / "report" / "trials.csv").write_text("key\n")
    done = publish(study(), filled(tmp_path / "ledger"), uri, tmp_path / "report")
    assert done.files == 2
    root = tmp_path / "mlflow" / "mlartifacts" / "spamlang-rank"
    assert (root / done.run_id / "artifacts" / "maps" / "boundary.html").read_text() == "<p>map</p>"
    run = runs_by_name(uri)["t0002"]
    with open(root / run.info.run_id / "artifacts" / "curve.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == study().evaluation.steps(300)
    assert not list((tmp_path / "cwd").iterdir())


def test_artifacts_that_cannot_be_stored_keep_no_number_back(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.store.artifact import artifact_repository_registry as registry

    ledger = filled(tmp_path / "ledger")
    with monkeypatch.context() as broken:

        def refuse(*_: object, **__: object) -> None:
            raise ConnectionError("no such bucket")

        broken.setattr(registry, "get_artifact_repository", refuse)
        done = publish(study(), ledger, uri)
    assert "no such bucket" in done.error
    assert runs_by_name(uri)["t0002"].data.metrics["result/final_excess"] > 0
    before = points(uri)
    again = publish(study(), ledger, uri)
    assert (again.error, again.written) == ("", 14)
    assert points(uri) == before


@pytest.mark.parametrize("where", ["closed", "silent"])
def test_a_server_that_is_away_is_one_error(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    ledger = filled(tmp_path / "ledger")
    connect(closed_address())  # load MLflow before the clock starts
    began = time.monotonic()
    with silent_server() as silent, pytest.raises(TrackError, match="cannot publish to MLflow at http"):
        publish(study(), ledger, silent if where == "silent" else closed_address())
    assert time.monotonic() - began < 8


def test_a_deleted_experiment_is_told(tmp_path: Path, uri: str) -> None:
    ledger = filled(tmp_path / "ledger")
    done = publish(study(), ledger, uri)
    connect(uri).delete_experiment(done.experiment_id)
    with pytest.raises(TrackError, match="deleted in MLflow; restore it"):
        publish(study(), ledger, uri)


def test_runs_that_a_lost_answer_doubled_are_one_again(tmp_path: Path, uri: str) -> None:
    ledger, of = filled(tmp_path / "ledger"), study()
    (claim, cell, trial), *_ = members(of, ledger.claims())
    client = connect(uri)
    mirror = Mirror(client, of, ledger, uri)
    mirror.start(claim, cell, trial)
    for name in ("t0000", "spamlang-rank"):  # the server made them, and its answers never came
        tags = {"isoloss.key": of.name if name == of.name else f"{of.name}/{claim.key}"}
        client.create_run(mirror.experiment_id, run_name=name, tags=tags)
    publish(of, ledger, uri)
    assert len(runs_by_name(uri)) == 17
    assert runs_by_name(uri)["t0000"].info.status == "FINISHED"
    assert runs_by_name(uri)["spamlang-rank"].data.params["replicates"] == "1"


def test_only_one_writes_at_a_time(tmp_path: Path, uri: str) -> None:
    ledger = filled(tmp_path / "ledger")
    with pytest.raises(TrackError, match="no experiment 'spamlang-rank' yet"):
        lookup(study(), uri)
    with sole_writer(ledger, uri), pytest.raises(BusyError, match="another process is writing"):
        publish(study(), ledger, uri)
    done = publish(study(), ledger, uri)
    with sole_writer(ledger, uri):
        assert lookup(study(), uri).link("study") == done.link("study")


def test_an_edited_view_is_kept_until_the_study_changes(tmp_path: Path, uri: str) -> None:
    ledger, key = filled(tmp_path / "ledger"), "mlflow.sharedViewState.isoloss-table"
    done = publish(study(), ledger, uri)
    client = connect(uri)
    client.set_experiment_tag(done.experiment_id, key, "mine")
    publish(study(), ledger, uri)
    assert client.get_experiment(done.experiment_id).tags[key] == "mine"
    publish(study(question="Another one?"), ledger, uri)
    assert client.get_experiment(done.experiment_id).tags[key] != "mine"


def test_links_open_views_and_the_run(tmp_path: Path, uri: str) -> None:
    ledger = Ledger(tmp_path / "ledger")
    claim_all(ledger, study())
    done = publish(study(), ledger, uri)
    start, page = f"http://host:5000/#/experiments/{done.experiment_id}/runs", "workflowType=machine_learning"
    curves = f"{start}?{page}&compareRunsMode=CHART&viewStateShareKey=isoloss-curves"
    assert done.link("curves", "http://host:5000/") == curves
    assert done.link("table", "http://host:5000") == f"{start}?{page}&viewStateShareKey=isoloss-table"
    assert done.link("study", "http://host:5000") == f"{start}/{done.run_id}?{page}"
    with pytest.raises(ValueError, match="compare, curves, table, study"):
        done.link("map")


def test_a_new_database_leaves_the_terminal_clean(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "ledger")
    code = (
        "import sys; from isoloss.run.ledger import Ledger; from isoloss.track.publish import publish\n"
        "ledger = Ledger(sys.argv[1]); publish(ledger.study(), ledger, sys.argv[2])"
    )
    command = [sys.executable, "-c", code, ledger.root, f"sqlite:///{tmp_path}/new/mlflow.db"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert (done.stdout, done.stderr) == ("", "")
    assert {path.name for path in tmp_path.iterdir()} == {"ledger", "new"}
