"""What must hold after a chaos run, each promise checked on its own; each function returns what is broken, in words."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path

from benchmarks.chaos.cluster import RAYS_OWN
from benchmarks.chaos.run import Run
from command import until

from isoloss.run.ledger import Ledger
from isoloss.study import Study
from isoloss.study_file import load_study
from isoloss.track.client import connect
from isoloss.track.publish import publish

AGENTS = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes of every node that lives."""

LATE_NS = 2_000_000_000
"""How long after a result appeared it may take the watch to see it."""

MEASURED = "result/seconds"
"""The one metric that is no number of the trial's own."""


def whole(run: Run, trials: set[str]) -> list[str]:
    """Every trial has one result, which never changed, and no execution of it began once it was there."""
    run.watch.look(at_all=True)
    broken = list(run.watch.broken)
    finished = run.ledger.finished()
    broken += [f"{len(trials - finished)} trials have no result"] if trials - finished else []
    broken += [f"{len(finished - trials)} results are of no trial"] if finished - trials else []
    claims = Counter(claim.key for claim in run.ledger.claims())
    broken += [f"trial {key} was claimed {count} times" for key, count in claims.items() if count != 1]
    for one in run.executions():
        if one.key in run.watch.ended and one.began_ns > run.watch.ended[one.key] * 1e9 + LATE_NS:
            broken.append(f"trial {one.key} was trained again after it had finished")
    return broken


def same_numbers(run: Run, study: Study, reference: Ledger) -> list[str]:
    """Every curve and every table of the report has the bytes that it has undisturbed."""
    broken = []
    for key in sorted(reference.finished() & run.ledger.finished()):
        ours, theirs = (dataclasses.replace(one.result(key), machine={}).to_bytes() for one in (run.ledger, reference))
        broken += [] if ours == theirs else [f"the curve of trial {key} differs from the undisturbed one"]
    ours, theirs = (
        _tables(folder) for folder in (run.disk / "reports" / study.name, Path(reference.root).parent / "report")
    )
    if not theirs or "trials.parquet" not in theirs or "surface.parquet" not in theirs:
        broken.append("the undisturbed report has no tables")
    for name in sorted(ours.keys() | theirs.keys()):
        broken += [] if ours.get(name) == theirs.get(name) else [f"the table {name} differs from the undisturbed one"]
    return broken


def published(run: Run, study: Study) -> list[str]:
    """Where the last driver says that MLflow lacks something, the command that it names mends that."""
    if "MLflow lacks" not in run.driver.output:
        return []
    command = run.isoloss("publish", study.name)
    return [f"isoloss publish failed: {command.output}"] if command.wait() else []


def same_runs(run: Run, study: Study, reference: Ledger) -> list[str]:
    """MLflow has one run a trial, with every point and param of an undisturbed publication, and no other."""
    calm = f"sqlite:///{Path(reference.root).parent}/mlflow.db"
    publish(study, reference, calm)
    ours, theirs = _runs(run.mlflow.url, study), _runs(calm, study)
    broken = [f"MLflow has {len(found)} runs of {key}" for key, found in ours.items() if len(found) != 1]
    if ours.keys() != theirs.keys():
        broken.append(f"MLflow has {len(ours)} keys, and undisturbed {len(theirs)}")
    for key in ours.keys() & theirs.keys():
        broken += [] if ours[key][0] == theirs[key][0] else [f"MLflow's run of {key} differs from the undisturbed one"]
    return broken


def nothing_left(run: Run) -> list[str]:
    """A next driver starts at once and finds nothing to do; drivers left no placement group, no actor and no lock."""
    broken = []
    began = time.monotonic()
    again = run.isoloss("run", run.study, "--address", run.nodes.address)
    code = again.wait()
    if code:
        broken.append(f"a next driver ended with {code} after {time.monotonic() - began:.0f} s: {again.output}")
    if run.ledger.driven_by():
        broken.append(f"the ledger is still held by {run.ledger.driven_by()}")
    left = run.nodes.ask("left")
    broken += [f"{kind} left behind: {', '.join(found)}" for kind, found in left.items() if found]
    own = (RAYS_OWN, *AGENTS)
    busy = [title for _, title in run.processes("ray::") if not any(name in title for name in own)]
    broken += [f"processes left behind: {', '.join(sorted(busy))}"] if busy else []
    return broken


def no_process_left(run: Run) -> list[str]:
    """Once cluster and servers are shut down, no process of the run is left."""
    run.watch.close()
    run.nodes.end()
    run.mlflow.kill()
    if run.store is not None:
        run.store.kill()
    try:
        until(lambda: not run.processes(""), "", 30)
    except AssertionError:
        return [f"processes left behind: {run.processes('')}"]
    return []


def _tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".parquet", ".csv")}


def _runs(uri: str, study: Study) -> dict[str, list[object]]:
    """Return by key what each of a study's runs says that must not depend on what happened to it."""
    client = connect(uri)
    experiment = client.get_experiment_by_name(study.name)
    assert experiment is not None
    found: dict[str, list[object]] = {}
    for run in client.search_runs([experiment.experiment_id], max_results=5000):
        tags = run.data.tags
        if tags["isoloss.kind"] == "trial":
            points = {
                (name, point.step, point.value)
                for name in run.data.metrics
                if name != MEASURED
                for point in client.get_metric_history(run.info.run_id, name)
            }
            says = (run.info.status, run.data.params, points, tags["isoloss.outcome"], tags["isoloss.cell"])
        else:
            says = (run.info.status, run.data.params)
        found.setdefault(tags["isoloss.key"], []).append(says)
    return found


def trial_keys(study_file: Path) -> tuple[Study, set[str]]:
    """Return the study of a file, and the keys of its trials."""
    study = load_study(str(study_file))
    return study, {trial.key for _, trial in study.trials()}
