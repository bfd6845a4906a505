"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


def _remember(state: Path) -> Path:
    from isoloss.data.card import use_state

    use_state(state)  # where study files look for prepared corpora
    return state


def _authenticated(address: str) -> str:
    if address:
        from isoloss.run.token import show_token

        show_token()  # before Ray is loaded, which looks only then
    return address


def _without_password(uri: str) -> str:
    from isoloss.track.client import check_uri

    return check_uri(uri)


StateFolder = Annotated[
    Path,
    typer.Option(
        "--state", envvar="ISOLOSS_STATE", callback=_remember, help="Folder of ledgers, reports, corpora and MLflow."
    ),
]
TrackingUri = Annotated[
    str,
    typer.Option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        callback=_without_password,
        help="MLflow; empty: a SQLite file in --state.",
    ),
]
LedgerRoot = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="ISOLOSS_LEDGER",
        help="Where ledgers are: s3://bucket/prefix, gs://bucket/prefix or a folder; empty: ledger in --state.",
    ),
]
ClusterAddress = Annotated[
    str,
    typer.Option("--address", callback=_authenticated, help="A Ray cluster; empty: this job's, or one started here."),
]
STATE = Path(".isoloss")

STUDY = "A study file, as studies/x.py or studies/x.py:variant."
StudyFile = Annotated[str, typer.Argument(metavar="STUDY", help=STUDY)]
STUDY_OR_NAME = f"{STUDY[:-1]}, or the name of a study that was run."
StudyOrName = Annotated[str, typer.Argument(metavar="STUDY", help=STUDY_OR_NAME)]
