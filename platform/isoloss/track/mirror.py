"""A study's experiment in MLflow, and the writes that bring it to what the ledger says, each safe to repeat.

MLflow has no unique keys, so runs are found by their tag ``isoloss.key``, once, and remembered; whoever writes must
hold ``sole_writer``. Every metric point of a trial carries the time of its claim: a point sent twice is then the same
point, and MLflow keeps one.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isoloss.config.base import canonical_json
from isoloss.outcome import Outcome
from isoloss.run.ledger import Claim, Ledger
from isoloss.run.store import HeldError, LedgerError
from isoloss.study import Study, Trial
from isoloss.track.client import BusyError, TrackError, artifact_root, reason
from isoloss.track.fields import (
    Child,
    Point,
    digest,
    finished_child,
    points,
    study_params,
    trial_key,
    unfinished_child,
)  # fmt: skip
from isoloss.track.views import COLOUR, VIEW_TAG, note, views
from isoloss.track.whole import WholeRuns

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Metric, Run
    from mlflow.tracking import MlflowClient

PUBLISHED = "isoloss.published"
"""Tag written last: digests of all that was written."""

RETIRED = "retired"
"""Its value on the run of a trial that the study, as it is defined now, would not make."""


@contextmanager
def sole_writer(ledger: Ledger, tracking_uri: str) -> Iterator[None]:
    """Hold the right to write this ledger's study to one MLflow; raises BusyError while another process has it."""
    held = ledger.store.hold(f"mlflow-{hashlib.sha256(tracking_uri.encode()).hexdigest()[:8]}")
    with ExitStack() as stack:
        try:
            stack.enter_context(held)
        except HeldError:
            raise BusyError(
                f"another process is writing this study to {tracking_uri}; what is missing there will follow from it"
            ) from None
        except LedgerError:  # it can only be read, so that no driver can be at work either
            pass
        yield


@dataclass
class _Run:
    """What is known of a trial's run in MLflow."""

    run_id: str
    status: str
    published: str = ""
    outcome: str = ""
    artifact_uri: str = ""
    ours: bool = False  # created by this process, so that nothing in it can contradict what we write
    sent: set[Point] = field(default_factory=set)  # live points that are there, while the trial runs


class Mirror:
    """The experiment of one study: opened once, then written trial by trial. Any call may raise MLflow's exceptions."""

    def __init__(self, client: MlflowClient, study: Study, ledger: Ledger, tracking_uri: str) -> None:
        self._client = client
        self._study = study
        self._ledger = ledger
        self._uri = tracking_uri
        self._runs: dict[str, _Run] = {}
        self.artifact_error = ""
        self.doubtful = False  # a run may exist that is not remembered: the call that makes it failed
        experiment = self._experiment()
        self.experiment_id: str = experiment.experiment_id
        self._whole = WholeRuns.of(client, self.experiment_id, experiment.artifact_location)
        self._describe(experiment)
        self._parent_metrics: dict[str, float] = {}
        self._parent_tags: dict[str, str] = {}
        self._parent_status = ""
        self.parent_id = self._find_runs()

    # --- experiment and parent

    def _experiment(self) -> Experiment:
        name = self._study.name
        found = self._client.get_experiment_by_name(name)
        if found is None:
            self._client.create_experiment(name, artifact_root(self._uri, name))
            found = self._client.get_experiment_by_name(name)
        elif found.lifecycle_stage == "deleted":
            raise TrackError(
                f"the experiment {name!r} is deleted in MLflow; restore it (`mlflow experiments restore "
                f"--experiment-id {found.experiment_id}`) or purge it with `mlflow gc`"
            )
        assert found is not None
        return found

    def _describe(self, experiment: Experiment) -> None:
        """Write note and views when the study's definition changed, and leave what a person has edited since."""
        now, study = time.time_ns() // 1_000_000, self._study
        wanted = {
            "mlflow.note.content": note(study, self.experiment_id),
            "mlflow.experiment.primaryMetric.name": COLOUR,
            "mlflow.experiment.primaryMetric.greaterIsBetter": "False",
            "isoloss.kind": "study",
        }
        known = digest([wanted, [[view.key, view.name, view.state] for view in views(study)]])
        tags = experiment.tags
        if tags.get("isoloss.views") == known:
            return
        for key, value in {**wanted, **{f"{VIEW_TAG}{view.key}": view.tag(now) for view in views(study)}}.items():
            self._client.set_experiment_tag(self.experiment_id, key, value)
        self._client.set_experiment_tag(self.experiment_id, "isoloss.views", known)

    def _find_runs(self) -> str:
        """Remember every run of the experiment that is ours; return the parent's id.

        A call that timed out may have made a run after all, which was then made again: one of the two is deleted.
        """
        parent: Run | None = None
        token = None
        while True:
            page = self._client.search_runs(
                [self.experiment_id], "tags.`isoloss.key` != ''", max_results=1000,
                order_by=["attributes.start_time ASC"], page_token=token,
            )  # fmt: skip
            for run in page:
                key, tags = run.data.tags["isoloss.key"], run.data.tags
                if key == self._study.name:
                    parent = self._keep_parent(parent, run)
                    continue
                twin = self._runs.get(key)
                if twin is not None:
                    self._client.delete_run(run.info.run_id if twin.published else twin.run_id)
                if twin is None or not twin.published:
                    self._runs[key] = _Run(
                        run.info.run_id, run.info.status, tags.get(PUBLISHED, ""), tags.get("isoloss.outcome", ""),
                        run.info.artifact_uri,
                    )  # fmt: skip
            token = page.token
            if not token:
                break
        return self._open_parent(parent)

    def _keep_parent(self, kept: Run | None, run: Run) -> Run | None:
        """Return the study's run; params cannot change, so a study with another space gets another run."""
        if kept is not None or run.data.params not in ({}, study_params(self._study)):
            self._client.delete_run(run.info.run_id)
            return kept
        return run

    def _open_parent(self, run: Run | None) -> str:
        from mlflow.entities import Param

        study = self._study
        if run is None:
            tags = {
                "isoloss.kind": "study",
                "isoloss.key": study.name,
                **self._definition(),
                "mlflow.user": _user(),
                "mlflow.source.name": "isoloss",
                "mlflow.source.type": "LOCAL",
            }
            run = self._client.create_run(self.experiment_id, run_name=study.name, tags=tags)
        if not run.data.params:
            params = [Param(key, value) for key, value in study_params(study).items()]
            self._client.log_batch(run.info.run_id, params=params)
        self._parent_tags, self._parent_metrics = dict(run.data.tags), dict(run.data.metrics)
        self._parent_status = run.info.status
        return str(run.info.run_id)

    def _definition(self) -> dict[str, str]:
        """The tags of the study's run that a new definition of the study changes."""
        return {
            "mlflow.note.content": note(self._study, self.experiment_id),
            "isoloss.verdict": canonical_json(self._study.verdict),
            "isoloss.search": canonical_json(self._study.search),
        }

    @property
    def complete(self) -> bool:
        """Say whether every trial that MLflow shows of the study has its result."""
        statuses = {run.status for run in self._runs.values() if run.published != RETIRED}
        return statuses == {"FINISHED"}

    def summarize(self, status: str) -> None:
        """Write what changed of the study's counts, definition and status."""
        from mlflow.entities import Metric, RunTag

        outcomes = Counter(run.outcome for run in self._runs.values() if run.outcome)
        finished = sum(outcomes.values())
        counts = {"study/finished": finished, **{f"study/{outcome}": outcomes[outcome] for outcome in Outcome}}
        now = time.time_ns() // 1_000_000
        metrics = [
            Metric(name, float(count), now, finished)
            for name, count in counts.items()
            if self._parent_metrics.get(name) != count
        ]
        tags = {key: value for key, value in self._definition().items() if self._parent_tags.get(key) != value}
        if metrics or tags:
            self._client.log_batch(self.parent_id, metrics, tags=[RunTag(key, value) for key, value in tags.items()])
            self._parent_metrics |= {metric.key: metric.value for metric in metrics}
            self._parent_tags |= tags
        if status != self._parent_status:
            self._set_status(self.parent_id, status, None)
            self._parent_status = status

    def upload(self, folder: Path) -> int:
        """Upload every file under ``folder`` to the study's run; return how many there are."""
        files = sum(path.is_file() for path in folder.rglob("*"))
        if files:
            try:
                self._client.log_artifacts(self.parent_id, str(folder))
            except Exception as error:  # whatever a store's own library raises
                self.artifact_error = f"cannot upload {folder}: {reason(error)}"
        return files

    # --- trials

    def start(self, claim: Claim, cell: Mapping[str, Any], trial: Trial) -> None:
        """Make sure that a trial has its run, RUNNING."""
        run = self._runs.get(trial_key(self._study, claim.key))
        if run is None:
            self._create(unfinished_child(self._study, claim, cell, trial, self.parent_id, "RUNNING", "running"))
        elif run.status != "RUNNING":
            self._client.update_run(run.run_id, "RUNNING")
            self._client.set_tag(run.run_id, "isoloss.state", "running")
            run.status = "RUNNING"

    def progress(self, claim: Claim, trial: Trial, rows: list[dict[str, Any]]) -> None:
        """Add points to a trial's run, which ``start`` has made."""
        run = self._runs[trial_key(self._study, claim.key)]
        fresh = [point for point in points(rows, trial.task.floor) if point not in run.sent]
        self._client.log_batch(run.run_id, _metrics(fresh, claim.created_ms))
        run.sent.update(fresh)

    def settle(self, claim: Claim, cell: Mapping[str, Any], trial: Trial, waiting: str = "SCHEDULED") -> bool:
        """Bring a trial's run to what the ledger says of it; return whether anything had to be written.

        A trial without a result is KILLED if it was given up, else ``waiting``: SCHEDULED says what is true of it,
        that the next run will train it, while KILLED would show it as a failure.
        """
        child = self._child(claim, cell, trial, waiting)
        key = trial_key(self._study, claim.key)
        run = self._runs.get(key)
        if run is not None and run.published == child.published and run.status == child.status:
            return False
        if run is not None and self._contradicts(run, child):
            self._client.delete_run(run.run_id)
            del self._runs[key]
            run = None
        if run is None and self._whole is not None and child.status == "FINISHED":
            self._runs[key] = self._write_whole(child)
        else:
            self._write(run or self._create(child), child)
        return True

    def retire(self, keys: set[str]) -> int:
        """Take trials that are no members of the study any more out of its views; return how many there were."""
        from mlflow.entities import RunTag

        former = [run for key, run in self._runs.items() if key not in keys and run.published != RETIRED]
        tags = [RunTag("isoloss.kind", "former trial"), RunTag(PUBLISHED, RETIRED)]
        for run in former:
            self._client.log_batch(run.run_id, tags=tags)
            run.published = RETIRED
        for key in set(self._runs) - keys:
            self._runs[key].outcome = ""
        return len(former)

    def _child(self, claim: Claim, cell: Mapping[str, Any], trial: Trial, waiting: str) -> Child:
        study, parent = self._study, self.parent_id
        if self._ledger.is_finished(claim.key):
            return finished_child(study, claim, cell, trial, parent, self._ledger.result(claim.key))
        given_up = self._ledger.unfinished().get(claim.key)
        if given_up is None:
            state = "running" if waiting == "RUNNING" else "waiting"
            return unfinished_child(study, claim, cell, trial, parent, waiting, state)
        return unfinished_child(
            study, claim, cell, trial, parent, "KILLED", f"{given_up['state']}: {given_up['reason']}"
        )

    def _contradicts(self, run: _Run, child: Child) -> bool:
        """Say whether the run holds params or points that the child does not, which MLflow could not take back."""
        if run.ours:
            return False
        numbers = run.published.partition(".")[0]
        if numbers not in ("", "none", RETIRED, child.numbers):
            return True
        params = self._client.get_run(run.run_id).data.params
        return any(child.params.get(name, value) != value for name, value in params.items())

    def _create(self, child: Child) -> _Run:
        self.doubtful = True
        created = self._client.create_run(self.experiment_id, child.start_ms, child.tags, child.name)
        self.doubtful = False
        run = _Run(created.info.run_id, "RUNNING", artifact_uri=created.info.artifact_uri, ours=True)
        self._runs[child.tags["isoloss.key"]] = run
        return run

    def _write_whole(self, child: Child) -> _Run:
        assert self._whole is not None
        run_id = self._whole.new_id()
        uri = self._whole.artifact_uri(run_id)
        published = self._upload_curve(uri, child)
        self.doubtful = True
        self._whole.write(run_id, child, {**child.tags, PUBLISHED: published})
        self.doubtful = False
        return _Run(run_id, child.status, published, child.tags.get("isoloss.outcome", ""), uri, ours=True)

    def _write(self, run: _Run, child: Child) -> None:
        from mlflow.entities import Param, RunTag

        there = run.published.partition(".")[0] == child.numbers
        published = child.published if there else self._upload_curve(run.artifact_uri, child)
        metrics = [] if there else [point for point in child.metrics if point not in run.sent]
        params = [Param(key, value) for key, value in child.params.items()]
        tags = {"isoloss.outcome": "", **child.tags} if run.outcome else child.tags
        tags = {**tags, PUBLISHED: published}
        self._client.log_batch(
            run.run_id, _metrics(metrics, child.start_ms), params, [RunTag(key, value) for key, value in tags.items()]
        )
        if run.status != child.status:
            self._set_status(run.run_id, child.status, child.end_ms)
        run.status, run.published, run.outcome = child.status, published, child.tags.get("isoloss.outcome", "")
        run.sent.clear()

    def _set_status(self, run_id: str, status: str, end_ms: int | None) -> None:
        if status in ("FINISHED", "KILLED"):
            self._client.set_terminated(run_id, status, end_ms)
        else:
            self._client.update_run(run_id, status)

    def _upload_curve(self, artifact_uri: str, child: Child) -> str:
        """Upload the curve and return the child's digest, or an empty one where it did not arrive.

        An artifact store that is away must not keep the numbers from being seen: it is tried once, its error is
        remembered, and the empty digest makes the next ``publish`` try again.
        """
        if not child.curve_csv:
            return child.published
        if self.artifact_error:
            return ""
        # Straight to the run's folder or store: the client would ask the database for it first.
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        try:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "curve.csv")
                with open(path, "w") as file:
                    file.write(child.curve_csv)
                get_artifact_repository(artifact_uri, tracking_uri=self._uri).log_artifact(path)
        except Exception as error:  # whatever a store's own library raises
            self.artifact_error = f"cannot upload to {artifact_uri}: {reason(error)}"
            return ""
        return child.published


def _metrics(values: list[Point], time_ms: int) -> list[Metric]:
    from mlflow.entities import Metric

    return [Metric(name, value, time_ms, step) for name, step, value in values]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return str(os.getuid())
