"""The Ray cluster of a run: connect to it or start one here, and refuse at once what it can never hold."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

import isoloss
from isoloss.errors import IsolossError
from isoloss.run.room import shortfall, slots_on
from isoloss.run.settings import RunSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Time between two looks at the nodes of the cluster."""


class ClusterError(IsolossError):
    """The cluster cannot be reached or is too small; the message says what it has and what was asked."""


ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Workers without room wait, in one queue with all others, and are not counted as failures every minute.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "86400",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    # The bridge decides how many trials there are at a time, and the driver what a signal means.
    "TUNE_MAX_PENDING_TRIALS_PG": "10000",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Snapshots of Tune's, which nothing is restored from: they hold every trial, and the driver while they are written.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
}
"""Set before Ray starts: no files per trial beside the ledger's, health checks that do not add seconds."""

WORKER_ENVIRONMENT = {
    # cuBLAS is deterministic only with a fixed workspace.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Large tensors are freed and allocated at every step: keep their pages, or each step faults them in again.
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
}


def connect(address: str | None, workers: Mapping[str, str] = WORKER_ENVIRONMENT, **here: object) -> None:
    """Connect to the cluster at ``address`` (``"auto"``: this job's), or start one on this machine.

    ``workers`` are environment variables of its workers; ``here`` are options of ``ray.init`` for a cluster that is
    started. To a cluster that is named by its host, this package is sent along. Raises ClusterError when there is none
    at the address.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if ray.is_initialized():
        return
    address = address or ("auto" if "RAY_ADDRESS" in os.environ else "local")
    runtime_env: dict[str, Any] = {"env_vars": dict(workers)}
    if address not in ("auto", "local"):  # a job has brought the package along, and here it is installed
        runtime_env["py_modules"] = [str(Path(isoloss.__file__).parent)]
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
            runtime_env=runtime_env,
            **(here if address == "local" else {}),
        )
    except Exception as error:  # Ray raises no narrower one when its start takes too long
        where = "this machine" if address == "local" else address
        raise ClusterError(f"cannot connect to Ray at {where}: {error}") from None


def require_room(settings: RunSettings) -> None:
    """See that the cluster has room for the slots; with an autoscaler, wait for the nodes of the first.

    Raises ClusterError when the cluster can never hold what was asked, or the nodes did not come in time.
    """
    has = nodes()
    room = slots_on(settings, has)
    if room >= (settings.slots or 1):
        return
    if not settings.wait_for_nodes:
        raise ClusterError(
            f"{shortfall(settings, has)}; ask for fewer or smaller slots, or, where an autoscaler adds nodes, say with "
            "--wait-for-nodes how many minutes it may take"
        )
    if not room:
        _wait_for_first(settings)


def nodes() -> list[dict[str, float]]:
    """Return what each living node of the cluster has in all."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _wait_for_first(settings: RunSettings) -> None:
    """Ask the autoscaler for the nodes of one slot, as the slot itself will, and wait until they are there."""
    log.warning("waiting for nodes, for up to %g minutes: %s", settings.wait_for_nodes, shortfall(settings, nodes()))
    workers = [settings.worker_resources] * settings.workers_per_slot
    group = placement_group(workers, strategy=settings.placement_strategy)
    try:
        deadline = time.monotonic() + settings.wait_for_nodes * 60
        while not group.wait(1):  # in small parts, since Ray hears no Ctrl-C while it waits
            if time.monotonic() > deadline:
                minutes, lacks = settings.wait_for_nodes, shortfall(settings, nodes())
                raise ClusterError(f"the nodes of a first slot did not come in {minutes:g} minutes: {lacks}")
    finally:
        remove_placement_group(group)


def start_coordinator() -> None:
    """Start the actor by which Ray Train asks the autoscaler for nodes on this one.

    It outlives its job and stays where it was first asked for; on a slot's node, no autoscaler would ever take that
    node away again (ray-project/ray pull request 62260).
    """
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )

    get_or_create_autoscaling_coordinator()


class Room:
    """How many slots may work at a time, counted again every few seconds, since nodes come and go.

    Never none, so that a slot waits for the first node. With an autoscaler all the ``slots`` that were asked for may
    wait: it adds the nodes of what waits.
    """

    def __init__(
        self,
        settings: RunSettings,
        nodes: Callable[[], list[dict[str, float]]] = nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._nodes, self._clock = settings, nodes, clock
        self._counted_at, self._here = -math.inf, -1

    def slots(self) -> int:
        """Return how many slots may work now; says so in the log when it has changed."""
        asked, scaled = self._settings.slots, self._settings.wait_for_nodes > 0
        if self._clock() - self._counted_at >= LOOK_SECONDS:
            self._counted_at = self._clock()
            here = slots_on(self._settings, self._nodes())
            if here != self._here and (self._here >= 0 or here < (asked or 1)):
                self._say(here)
            self._here = here
        if asked is not None and scaled:
            return asked
        return max(1, self._here if asked is None else min(asked, self._here))

    def _say(self, here: int) -> None:
        wanted = self._settings.slots or 1
        waiting = f"; waiting for nodes for {wanted - here} more" if here < wanted else ""
        log.warning("the cluster has room for %d slot%s now%s", here, "s" * (here != 1), waiting)
