"""The ``isoloss doctor`` command: whether this machine, a cluster and MLflow are fit to run studies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from isoloss.options import STATE, ClusterAddress, LedgerRoot, StateFolder, TrackingUri
from isoloss.output import AsJson, say

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


def doctor(
    address: ClusterAddress = "",
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    tracking_uri: TrackingUri = "",
    as_json: AsJson = False,
) -> None:
    """Look at packages, the state folder, MLflow and a cluster, and say what would not work; exit code 3 if any.

    A cluster is looked at only where ``--address`` names one: ``auto`` inside a job, else host:port.
    """
    from isoloss.checkup import Check, check_folder, check_gpus, check_packages, check_platform_module, find_gpus
    from isoloss.run.state import State
    from isoloss.run.store_checkup import check_store
    from isoloss.track.checkup import check_tracking

    place = State(state, tracking_uri, ledgers)
    folder = check_folder(place.folder)
    checks = [check_packages(), check_platform_module(Path.cwd()), check_gpus(find_gpus()), folder]
    kept = folder
    if place.ledgers != str(place.folder / "ledger"):
        kept = check_store(place)
        checks.append(kept)
    checks.append(check_tracking(place.tracking_uri))
    if address and kept.state == "failed":
        checks.append(Check("cluster", "failed", "not looked at: its nodes are asked about the ledgers"))
    elif address:
        from isoloss.run.checkup import check_cluster
        from isoloss.run.cluster import ClusterError
        from isoloss.run.store import LedgerError

        try:
            checks += check_cluster(address, place)
        except (ClusterError, LedgerError) as error:
            checks.append(Check("cluster", "failed", str(error)))

    def text(shown: Console) -> None:
        for check in checks:
            line = f"{check.state:<8} {check.name:<9} {check.text}"
            shown.print(line, style=COLOURS[check.state], markup=False, soft_wrap=True)

    say([asdict(check) for check in checks], as_json, text)
    if any(check.state == "failed" for check in checks):
        raise typer.Exit(3)
