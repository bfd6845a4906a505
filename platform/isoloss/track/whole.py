"""A finished run written in one transaction, into a database that MLflow opens in this process.

MLflow's client takes three calls, some ten transactions and 60 to 80 ms of CPU for a trial of 130 points; this takes
about 5. It fills MLflow's own tables through MLflow's own table classes, whose shape a database is checked against
when it is opened, and a test holds it to the rows that the client writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isoloss.track.fields import Child

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FILLED = {
    "SqlRun": {
        "run_uuid", "name", "source_type", "source_name", "entry_point_name", "user_id", "status", "start_time",
        "end_time", "source_version", "lifecycle_stage", "artifact_uri", "experiment_id",
    },
    "SqlTag": {"key", "value", "run_uuid"},
    "SqlParam": {"key", "value", "run_uuid"},
    "SqlMetric": {"key", "value", "timestamp", "step", "is_nan", "run_uuid"},
    "SqlLatestMetric": {"key", "value", "timestamp", "step", "is_nan", "run_uuid"},
}  # fmt: skip
"""The columns that are written, by table class."""


class WholeRuns:
    """Writes whole runs into one experiment of a database."""

    def __init__(self, store: Any, experiment_id: str, artifact_location: str) -> None:
        self._store = store
        self._experiment_id = experiment_id
        self._artifact_location = artifact_location

    @classmethod
    def of(cls, client: MlflowClient, experiment_id: str, artifact_location: str) -> WholeRuns | None:
        """Return the writer, or None where runs must go through the client: a server, or tables of another shape."""
        store = getattr(getattr(client, "_tracking_client", None), "store", None)
        # By name, since importing the class, and SQLAlchemy with it, would cost users of a server 1.5 s.
        if "SqlAlchemyStore" not in [kind.__name__ for kind in type(store).__mro__]:
            return None
        from mlflow.store.tracking.dbmodels import models

        for name, filled in FILLED.items():
            columns = getattr(models, name).__table__.columns
            needed = {column.name for column in columns if not column.nullable}
            if not needed <= filled <= {column.name for column in columns}:
                return None
        return cls(store, experiment_id, artifact_location)

    def artifact_uri(self, run_id: str) -> str:
        """Return where a run's artifacts go."""
        return f"{self._artifact_location}/{run_id}/artifacts"

    def new_id(self) -> str:
        """Return the id of a run to be written."""
        return uuid.uuid4().hex

    def write(self, run_id: str, child: Child, tags: Mapping[str, str]) -> None:
        """Insert the run with all its params, tags and metrics; it exists whole or not at all."""
        from mlflow.store.tracking.dbmodels import models
        from sqlalchemy import insert

        time = child.start_ms
        run = {
            "run_uuid": run_id, "name": child.name, "source_type": "UNKNOWN", "source_name": "",
            "entry_point_name": "", "user_id": "unknown", "status": child.status, "start_time": child.start_ms,
            "end_time": child.end_ms, "source_version": "", "lifecycle_stage": "active",
            "artifact_uri": self.artifact_uri(run_id), "experiment_id": int(self._experiment_id),
        }  # fmt: skip
        metrics = [_metric(run_id, name, step, value, time) for name, step, value in child.metrics]
        latest: dict[str, dict[str, Any]] = {}
        for row in metrics:
            best = latest.setdefault(row["key"], row)
            if (row["step"], row["value"]) > (best["step"], best["value"]):
                latest[row["key"]] = row
        texts = {**tags, "mlflow.runName": child.name}
        with self._store.ManagedSessionMaker(read_only=False) as session:
            for table, rows in (
                (models.SqlRun, [run]),
                (models.SqlTag, [{"run_uuid": run_id, "key": key, "value": value} for key, value in texts.items()]),
                (models.SqlParam, [{"run_uuid": run_id, "key": k, "value": v} for k, v in child.params.items()]),
                (models.SqlMetric, metrics),
                (models.SqlLatestMetric, list(latest.values())),
            ):
                if rows:
                    session.execute(insert(table.__table__), rows)


def _metric(run_id: str, name: str, step: int, value: float, time: int) -> dict[str, Any]:
    return {"run_uuid": run_id, "key": name, "value": value, "timestamp": time, "step": step, "is_nan": False}
