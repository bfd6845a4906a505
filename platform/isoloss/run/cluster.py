"""The Ray cluster of a run: connect to it or start one here, and refuse at once what it can never hold."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import ray

from isoloss.errors import IsolossError
from isoloss.run.settings import RunSettings

SLOT_CPUS = 0.05
"""What Ray reserves for a slot's own actor: more than nothing, since Tune refuses zero, and small enough to fit."""


class ClusterError(IsolossError):
    """The cluster cannot be reached or is too small; the message says what it has and what was asked."""


ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
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
    started. Raises ClusterError when there is none at the address.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if ray.is_initialized():
        return
    address = address or ("auto" if "RAY_ADDRESS" in os.environ else "local")
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
            runtime_env={"env_vars": dict(workers)},
            **(here if address == "local" else {}),
        )
    except Exception as error:  # Ray raises no narrower one when its start takes too long
        where = "this machine" if address == "local" else address
        raise ClusterError(f"cannot connect to Ray at {where}: {error}") from None


def fit_slots(settings: RunSettings) -> int:
    """Return how many slots to run: as asked, or as many as fit.

    Raises ClusterError when the cluster, all nodes together, can never hold what was asked.
    """
    return slots_in(settings, ray.cluster_resources())


def slots_in(settings: RunSettings, has: dict[str, float]) -> int:
    """Return how many slots fit into resources ``has``; raises ClusterError when too few do."""
    worker = settings.worker_resources
    needs = {name: amount * settings.workers_per_slot for name, amount in worker.items()}
    needs["CPU"] += SLOT_CPUS
    room = min(int(has.get(name, 0.0) / amount + 1e-9) for name, amount in needs.items())
    wanted = settings.slots or 1
    if room < wanted:
        each = " and ".join(f"{amount * wanted:g} {name}" for name, amount in needs.items())
        found = " and ".join(f"{has.get(name, 0.0):g} {name}" for name in needs)
        raise ClusterError(
            f"{wanted} slot{'s' * (wanted > 1)} of {settings.workers_per_slot} worker"
            f"{'s' * (settings.workers_per_slot > 1)} need {each}, and the cluster has {found}; "
            "ask for fewer --slots or --workers-per-slot"
        )
    return settings.slots or room
