"""Publishing: one pass that brings MLflow to what a ledger says."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isoloss.run.ledger import Claim, Ledger
from isoloss.run.members import members
from isoloss.study import Study, Trial
from isoloss.track.boundary import boundary_fields
from isoloss.track.client import BusyError, TrackError, connect, reason
from isoloss.track.fields import trial_key
from isoloss.track.mirror import Mirror, sole_writer
from isoloss.track.views import fragment, run_fragment, views

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["BusyError", "Published", "TrackError", "lookup", "publish"]


@dataclass(frozen=True)
class Published:
    """How far MLflow agrees with the ledger.

    ``trials`` runs say what the ledger says, ``written`` of them since this call or tracker began; ``pending`` trials
    are still to be published; ``files`` were uploaded to the study's run, ``run_id``; ``error`` is the last error, or
    empty; ``cpu_s`` is the time it took of this process. Ids are empty where MLflow was never reached.
    """

    study: Study
    tracking_uri: str
    experiment_id: str = ""
    run_id: str = ""
    trials: int = 0
    written: int = 0
    pending: int = 0
    files: int = 0
    error: str = ""
    cpu_s: float = 0.0

    def link(self, view: str = "compare", server: str | None = None) -> str:
        """Return the link that opens a saved view (``compare``, ``curves``, ``table``) or the study's run (``study``).

        ``server`` is the address of an MLflow server; without it, a tracking URI that is no server gives the part
        after the address. Raises ValueError for an unknown view.
        """
        pages = {known.key.removeprefix("isoloss-"): fragment(self.experiment_id, known) for known in views(self.study)}
        pages["study"] = run_fragment(self.experiment_id, self.run_id)
        if view not in pages:
            raise ValueError(f"view must be one of {', '.join(pages)}; not {view!r}")
        base = server or (self.tracking_uri if self.tracking_uri.startswith(("http://", "https://")) else "")
        return base.rstrip("/") + pages[view]


def publish(study: Study, ledger: Ledger, tracking_uri: str, artifacts: Path | None = None) -> Published:
    """Bring MLflow to what the ledger says of the study, and upload every file under ``artifacts`` to its run.

    Doing it twice changes nothing. Trials without a result stay RUNNING while another process drives the study, else
    they are SCHEDULED. Raises TrackError when MLflow cannot be reached or written, BusyError while another process
    writes this study to it.
    """
    began = time.thread_time()
    client = connect(tracking_uri)
    from mlflow.exceptions import MlflowException

    try:
        with sole_writer(ledger, tracking_uri):
            mirror = Mirror(client, study, ledger, tracking_uri)
            driven_elsewhere = ledger.driven_by() not in ("", f"process {os.getpid()} on {socket.gethostname()}")
            waiting = "RUNNING" if driven_elsewhere else "SCHEDULED"
            claims = list(members(study, ledger.claims()))
            written = sum(mirror.settle(claim, cell, trial, waiting) for claim, cell, trial in claims)
            mirror.retire({trial_key(study, claim.key) for claim, _, _ in claims})
            files = mirror.upload(artifacts) if artifacts is not None else 0
            mirror.summarize("FINISHED" if mirror.complete else waiting)
            _tell_boundary(client, mirror.parent_id, study, ledger, claims)
    except MlflowException as error:
        raise TrackError(f"cannot publish to MLflow at {tracking_uri}: {reason(error)}") from None
    return Published(
        study, tracking_uri, mirror.experiment_id, mirror.parent_id, len(claims), written, 0, files,
        mirror.artifact_error, time.thread_time() - began,
    )  # fmt: skip


def _tell_boundary(
    client: MlflowClient,
    parent_id: str,
    study: Study,
    ledger: Ledger,
    claims: list[tuple[Claim, dict[str, Any], Trial]],
) -> None:
    """Write what a boundary search came to, on the study's run; nothing for other searches.

    Its points carry the time of the last claim: a point sent twice is then the same.
    """
    from mlflow.entities import Metric, RunTag

    metrics, tags = boundary_fields(study, ledger)
    if metrics and claims:
        time_ms, step = claims[-1][0].created_ms, int(metrics["boundary/trials"])
        client.log_batch(
            parent_id,
            [Metric(name, value, time_ms, step) for name, value in metrics.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )


def lookup(study: Study, tracking_uri: str) -> Published:
    """Return where MLflow holds the study, for its links, and write nothing; raises TrackError where it holds none."""
    client = connect(tracking_uri)
    from mlflow.exceptions import MlflowException

    try:
        experiment = client.get_experiment_by_name(study.name)
        if experiment is None:
            raise TrackError(f"MLflow at {tracking_uri} has no experiment {study.name!r} yet")
        key = f"tags.`isoloss.key` = '{study.name}'"
        runs = client.search_runs([experiment.experiment_id], key, max_results=1)
    except MlflowException as error:
        raise TrackError(f"cannot reach MLflow at {tracking_uri}: {reason(error)}") from None
    return Published(study, tracking_uri, experiment.experiment_id, runs[0].info.run_id if runs else "")
