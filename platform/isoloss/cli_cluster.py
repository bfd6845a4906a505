"""The ``isoloss submit`` and ``isoloss status`` commands: a study on a cluster, and how far a study is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isoloss.options import STATE, LedgerRoot, StateFolder, StudyFile, StudyOrName, TrackingUri
from isoloss.output import AsJson, console, say

Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="A variable that the cluster's machines must have; repeatable."),
]
Dashboard = Annotated[str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The cluster's dashboard.")]


def submit(
    context: typer.Context,
    study_file: StudyFile,
    address: Dashboard = "http://127.0.0.1:8265",
    state: Annotated[
        Path, typer.Option("--state", envvar="ISOLOSS_STATE", help="State folder, an absolute path on the cluster.")
    ] = STATE,
    ledgers: LedgerRoot = "",
    tracking_uri: TrackingUri = "",
    secrets: Secrets = None,
    any_versions: Annotated[
        bool, typer.Option("--any-versions", help="Do not ask that the cluster has this machine's versions.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow the job's log.")] = False,
) -> None:
    """Run a study on a cluster as a Ray job. Options of `isoloss run`, such as --device cuda, are passed on."""
    from isoloss.run.job import check_public, job_environment
    from isoloss.run.store import open_store
    from isoloss.run.submit import submit_study
    from isoloss.study_file import load_study

    study = load_study(study_file)
    if ledgers:
        open_store(ledgers)  # refuses an address that cannot be one, or holds a key
    options = ["--state", str(state.absolute())]
    options += ["--ledger", ledgers] if ledgers else []
    options += ["--tracking-uri", tracking_uri] if tracking_uri else []
    check_public([*options, *context.args])
    environment = job_environment(secrets or [], pinned=not any_versions)
    if not submit_study(study_file, study.name, address, [*options, *context.args], environment, not detach, console()):
        raise typer.Exit(1)


def status(
    study: StudyOrName,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    address: Annotated[
        str, typer.Option(help="A cluster's dashboard: list the study's jobs, and look at the ledger from there.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show how far a study is, also while it runs in another terminal or on a cluster."""
    from isoloss.report.status import status_of, status_text
    from isoloss.run.state import State

    if address:
        _status_on(address, study, state, ledgers, as_json)
        return
    facts = status_of(*State(state, ledgers=ledgers).find(study))
    say(facts, as_json, lambda shown: shown.print(status_text(facts)))


def _status_on(address: str, study: str, state: Path, ledgers: str, as_json: bool) -> None:
    from isoloss.run.job import job_environment
    from isoloss.run.submit import ask_cluster, jobs_of
    from isoloss.study_file import load_study

    name = load_study(study).name if study.partition(":")[0].endswith(".py") else study
    if not as_json:
        for line in jobs_of(name, address) or [f"no job of {name} on {address}"]:
            console().print(line, markup=False, soft_wrap=True)
    options = ["--state", str(state.absolute()), *(["--ledger", ledgers] if ledgers else [])]
    options += ["--json"] if as_json else []
    if not ask_cluster(address, ["status", name, *options], job_environment([], pinned=False)):
        raise typer.Exit(3)
