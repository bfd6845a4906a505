"""The way to an MLflow server or database: loaded late, quiet, and quick to give up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from isoloss.errors import IsolossError, UsageError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ENVIRONMENT = {
    # Failures come back as exceptions and are told by us; the terminal belongs to the study.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # MLflow's own defaults keep a call to a server that is away busy for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Settings under which MLflow is loaded, unless the user has set them."""


class TrackError(IsolossError):
    """MLflow could not be brought to what the ledger says; the message says why. The ledger has lost nothing."""


class BusyError(TrackError):
    """Another process is writing this study to MLflow now, and will go on until it is complete."""


def connect(tracking_uri: str) -> MlflowClient:
    """Return a client of ``tracking_uri``; a new SQLite database is created with its folder.

    Raises TrackError when the URI names no place that could be reached, UsageError when it holds a password. A server
    is not asked yet.
    """
    check_uri(tracking_uri)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    database = sqlite_file(tracking_uri)
    if database is not None:
        # MLflow retries for minutes where a folder cannot be written.
        folder = database.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrackError(f"cannot create the folder of MLflow's database, {folder}: {reason(error)}") from None
        if not os.access(database if database.exists() else folder, os.W_OK):
            raise TrackError(f"cannot write MLflow's database {database}: permission denied")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        return MlflowClient(tracking_uri)
    except MlflowException as error:
        raise TrackError(f"cannot reach MLflow at {tracking_uri}: {reason(error)}") from None


def check_uri(tracking_uri: str) -> str:
    """Return ``tracking_uri``; raises UsageError when a password is part of it.

    The URI is printed, is part of the command of a cluster's job, and is seen in every list of processes.
    """
    if urlsplit(tracking_uri).password:
        raise UsageError(
            "the tracking URI holds a password, which others would see: leave it out, and set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD for a server, PGPASSWORD for PostgreSQL"
        )
    return tracking_uri


def sqlite_file(tracking_uri: str) -> Path | None:
    """Return the file of a ``sqlite:///`` URI, or None for any other URI."""
    scheme, _, path = tracking_uri.partition(":///")
    if not scheme.startswith("sqlite") or not path:
        return None
    return Path(path.partition("?")[0]).absolute()


def artifact_root(tracking_uri: str, experiment: str) -> str | None:
    """Return where an experiment's artifacts go: beside a SQLite database; None leaves the choice to a server."""
    database = sqlite_file(tracking_uri)
    return None if database is None else (database.parent / "mlartifacts" / experiment).as_uri()


def reason(error: BaseException) -> str:
    """Return an error as one short line; where a server refuses us, what to do about it."""
    line = _refusal(error) or " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 300 else f"{line[:297]}..."


def _refusal(error: BaseException) -> str:
    """Return why a server with accounts refused a call, or an empty text for any other error."""
    # MLflow's own exceptions have a code, those of its way to artifacts the answer itself.
    status = getattr(getattr(error, "response", None), "status_code", None)
    code = getattr(error, "error_code", None)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if status == 401 or code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"):
        if user is None:
            return "it asks for a user and a password: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        return (
            f"it does not accept the password of user {user!r}: check MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD"
        )
    if status == 403 or code == "PERMISSION_DENIED":
        if "Host header" in str(error):
            return "it does not answer to this address: its MLFLOW_SERVER_ALLOWED_HOSTS must name it, port included"
        who = "this user" if user is None else f"user {user!r}"
        return f"{who} may read there but not write: an administrator must grant MANAGE on the experiment"
    return ""
