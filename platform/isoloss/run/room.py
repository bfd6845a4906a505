"""How many slots the nodes of a cluster hold at once, and in words why they hold no more."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from isoloss.run.settings import SLOT_CPUS, RunSettings

Node = Mapping[str, float]
"""What a node has in all, by Ray's names: ``CPU``, ``GPU``."""


def slots_on(settings: RunSettings, nodes: Sequence[Node]) -> int:
    """Return the largest number of slots whose workers and actors can be placed on the nodes at the same time.

    Exact, since all workers are alike, and each takes a whole multiple of the CPU share of a slot's actor: whatever
    share the workers leave free, wherever it is, holds an actor.
    """
    each, workers = [workers_on(settings, node) for node in nodes], settings.workers_per_slot
    most = sum(each) // workers
    if settings.placement == "strict-pack":
        most = sum(count // workers for count in each)
    elif settings.placement == "strict-spread":
        # A node holds at most one worker of each slot, so s slots fit if and only if the nodes hold s * workers so.
        most = bisect_left(
            range(1, most + 1), True, key=lambda slots: sum(min(count, slots) for count in each) < slots * workers
        )
    shares = workers * _shares(settings.worker_resources["CPU"]) + 1
    return min(most, sum(_shares(node.get("CPU", 0.0)) for node in nodes) // shares)


def workers_on(settings: RunSettings, node: Node) -> int:
    """Return how many workers fit on one node; a share of a GPU is always of a single one."""
    needs = settings.worker_resources
    room = _shares(node.get("CPU", 0.0)) // _shares(needs["CPU"])
    if "GPU" not in needs:
        return room
    gpus, share = int(node.get("GPU", 0.0)), needs["GPU"]
    return min(room, gpus * int(1 / share + 1e-9) if share < 1 else gpus // int(share))


def shortfall(settings: RunSettings, nodes: Sequence[Node]) -> str:
    """Say in one sentence what the slots need and what the nodes have."""
    needs, workers = settings.worker_resources, settings.workers_per_slot
    if not any(workers_on(settings, node) for node in nodes):
        largest = max(nodes, key=lambda node: [node.get(name, 0.0) for name in reversed(needs)], default={})
        return (
            f"a worker needs {_amounts(needs, needs)} on one node, and the largest node has {_amounts(largest, needs)}"
        )
    slots, room = settings.slots or 1, slots_on(settings, nodes)
    placed = "" if settings.placement in ("pack", "spread") else f", placed by {settings.placement},"
    has = Counter(_amounts(node, needs) for node in nodes)
    return (
        f"{_count(slots, 'slot')} of {_count(workers, 'worker')}{placed} need {_amounts(needs, needs)} for each worker"
        f" and {SLOT_CPUS:g} CPU for each slot, and the cluster has room for {_count(room, 'such slot')}: "
        + ", ".join(f"{_count(number, 'node')} with {amounts}" for amounts, number in has.items())
    )


def _shares(cpus: float) -> int:
    return int(cpus / SLOT_CPUS + 1e-6)


def _amounts(resources: Mapping[str, float], names: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0.0):g} {name}" for name in names)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
