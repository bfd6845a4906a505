"""Public models in MLflow: one experiment, and in it one run for each time a model was measured."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from isoloss.track.client import TrackError, artifact_root, connect, reason
from isoloss.track.fields import text
from isoloss.track.views import run_fragment

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT = "isoloss probes"
"""With a space, which the name of a study cannot have."""

TABLE = "tokens.parquet"


@dataclass(frozen=True)
class ProbeExperiment:
    """The experiment of public models at one tracking URI."""

    client: MlflowClient
    tracking_uri: str
    experiment_id: str

    @classmethod
    def open(cls, tracking_uri: str) -> ProbeExperiment:
        """Return the experiment, made where it is missing; raises TrackError when MLflow cannot be had or written."""
        client = connect(tracking_uri)
        with _told(tracking_uri):
            found = client.get_experiment_by_name(EXPERIMENT)
            if found is not None and found.lifecycle_stage == "deleted":
                raise TrackError(
                    f"the experiment {EXPERIMENT!r} is deleted in MLflow; restore it (`mlflow experiments restore "
                    f"--experiment-id {found.experiment_id}`) or purge it with `mlflow gc`"
                )
            id = found.experiment_id if found else client.create_experiment(
                EXPERIMENT, artifact_root(tracking_uri, EXPERIMENT)
            )  # fmt: skip
        return cls(client, tracking_uri, id)

    def record(self, name: str, params: Mapping[str, Any], figures: Mapping[str, float], table: pa.Table) -> str:
        """Write a run and return its id: finite ``figures`` as metrics ``probe/…``, ``table`` as a file.

        Raises TrackError; the run is then left RUNNING, as one that is not whole.
        """
        from mlflow.entities import Metric, Param

        now = time.time_ns() // 1_000_000
        metrics = [Metric(f"probe/{key}", value, now, 0) for key, value in figures.items() if math.isfinite(value)]
        with _told(self.tracking_uri):
            run = self.client.create_run(self.experiment_id, run_name=name, tags={"isoloss.kind": "probe"})
            run_id: str = run.info.run_id
            self.client.log_batch(run_id, metrics, [Param(key, text(value)) for key, value in params.items()])
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / TABLE
                pq.write_table(table, path, compression="zstd")
                self.client.log_artifact(run_id, str(path))
            self.client.set_terminated(run_id)
        return run_id

    def link(self, run_id: str) -> str:
        """Return the link that opens a run; an empty text at a tracking URI that is no server."""
        if not self.tracking_uri.startswith(("http://", "https://")):
            return ""
        return self.tracking_uri.rstrip("/") + run_fragment(self.experiment_id, run_id)


@contextmanager
def _told(tracking_uri: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise TrackError(f"cannot write to MLflow at {tracking_uri}: {reason(error)}") from None
