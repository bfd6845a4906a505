"""Whether MLflow can be reached and written: a run is made, read back and deleted."""

from __future__ import annotations

import os

from isoloss.checkup import Check
from isoloss.track.client import TrackError, artifact_root, connect, reason

EXPERIMENT = "isoloss-doctor"
"""Where the run is made; it stays in MLflow's trash. Of a server with accounts each user has another."""


def check_tracking(tracking_uri: str) -> Check:
    """Say whether experiments, runs, metrics and artifacts can be written to ``tracking_uri``."""
    try:
        client = connect(tracking_uri)
    except TrackError as error:
        return Check("mlflow", "failed", str(error))
    from mlflow.exceptions import MlflowException

    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    name = EXPERIMENT if user is None else f"{EXPERIMENT}-{user}"
    try:
        found = client.get_experiment_by_name(name)
        if found is None:
            experiment = client.create_experiment(name, artifact_root(tracking_uri, name))
        else:
            experiment = found.experiment_id
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(experiment)
        run = client.create_run(experiment).info.run_id
        client.log_metric(run, "checkup", 1.0)
        client.log_text(run, "1", "checkup.txt")
        read = client.get_run(run).data.metrics.get("checkup")
        files = [file.path for file in client.list_artifacts(run)]
        client.set_terminated(run)
        client.delete_run(run)
        client.delete_experiment(experiment)
    except (MlflowException, OSError) as error:
        return Check("mlflow", "failed", f"{tracking_uri}: {reason(error)}; trials would still run, unseen")
    if read != 1.0 or files != ["checkup.txt"]:
        return Check("mlflow", "failed", f"{tracking_uri}: what was written is not read back ({read}, {files})")
    return Check("mlflow", "ok", f"{tracking_uri}: a run with a metric and a file was written, read back and deleted")
