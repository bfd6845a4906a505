"""The room for slots on a cluster's nodes, against trying every way to place them."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from isoloss.errors import UsageError
from isoloss.run.cluster import ClusterError, Room
from isoloss.run.room import shortfall, slots_on, workers_on
from isoloss.run.settings import RunSettings
from isoloss.train.settings import Settings

CUDA = Settings(device="cuda")


def most_slots(settings: RunSettings, nodes: list[dict[str, float]]) -> int:
    """Place slots until no way is left, by trying all: in hundredths of a CPU, and each GPU by itself."""
    cpus = tuple(round(node.get("CPU", 0) * 100) for node in nodes)
    gpus = tuple((100,) * int(node.get("GPU", 0)) for node in nodes)
    slots = 0
    while _placeable(settings, slots + 1, cpus, gpus):
        slots += 1
    return slots


def _placeable(settings: RunSettings, slots: int, cpus: tuple[int, ...], gpus: tuple[tuple[int, ...], ...]) -> bool:
    states = {(cpus, gpus)}
    for _ in range(slots):
        states = {after for state in states for after in _with_slot(settings, *state)}
    return any(sum(cpu // 5 for cpu in cpus) >= slots for cpus, _ in states)  # an actor of 0.05 CPU for each slot


def _with_slot(settings: RunSettings, cpus, gpus):
    """Yield what nodes have left after each way to place one slot's workers."""
    for where in itertools.combinations_with_replacement(range(len(cpus)), settings.workers_per_slot):
        together, apart = len(set(where)) == 1, len(set(where)) == len(where)
        if {"strict-pack": together, "strict-spread": apart}.get(settings.placement, True):
            left = _without(settings, Counter(where), cpus, gpus)
            if left is not None:
                yield left


def _without(settings: RunSettings, workers: Counter, cpus, gpus):
    cpus, gpus = list(cpus), [list(node) for node in gpus]
    for node in workers.elements():
        cpus[node] -= 90 if settings.train.device == "cuda" else settings.train.threads * 100 - 10
        if cpus[node] < 0:
            return None
        if settings.train.device == "cuda":
            share = round(settings.gpus_per_worker * 100)
            for part in [100] * (share // 100) or [share]:
                fitting = [place for place, left in enumerate(gpus[node]) if left >= part]
                if not fitting:
                    return None
                tightest = min(fitting, key=lambda place: gpus[node][place])
                gpus[node][tightest] -= part
    return tuple(cpus), tuple(tuple(sorted(node)) for node in gpus)


def cases():
    draw = random.Random(1)
    for number in range(400):
        cuda = number % 2 == 0
        nodes = [
            {"CPU": draw.choice([0, 1, 1.95, 2, 3]), **({"GPU": draw.choice([0, 1, 2, 3])} if cuda else {})}
            for _ in range(draw.choice([1, 2, 3]))
        ]
        settings = RunSettings(
            train=CUDA if cuda else Settings(threads=draw.choice([1, 2])),
            workers_per_slot=draw.choice([1, 2, 3]),
            gpus_per_worker=draw.choice([0.3, 0.4, 0.5, 1.0, 2.0]),
            placement=draw.choice(["pack", "spread", "strict-pack", "strict-spread"]),
        )
        yield settings, nodes


def test_room_is_what_trying_every_placement_finds() -> None:
    found = Counter()
    for settings, nodes in cases():
        expected = most_slots(settings, nodes)
        assert slots_on(settings, nodes) == expected, (settings, nodes)
        found[expected] += 1
    assert len(found) >= 4, "the cases are all alike"


def test_workers_share_single_gpus_only() -> None:
    node = {"CPU": 16.0, "GPU": 2.0}
    shares = (0.1, 0.25, 0.4, 0.6)
    counts = [workers_on(RunSettings(train=CUDA, gpus_per_worker=share), node) for share in shares]
    assert counts == [17, 8, 4, 2]  # 16 CPUs at 0.9 each; then 4, 2 and 1 of each GPU
    assert workers_on(RunSettings(train=CUDA, gpus_per_worker=2), node) == 1
    assert workers_on(RunSettings(train=CUDA, gpus_per_worker=4), node) == 0


def test_a_worker_cannot_have_one_gpu_and_a_half() -> None:
    with pytest.raises(UsageError, match=r"a share of one GPU, below 1, or a whole number of GPUs, not 1\.5"):
        RunSettings(gpus_per_worker=1.5)
    assert RunSettings(gpus_per_worker=8.0).worker_resources == {"CPU": 0.9}


def test_what_can_never_fit_is_refused_in_words() -> None:
    laptop = [{"CPU": 2.0}]
    assert shortfall(RunSettings(slots=3), laptop) == (
        "3 slots of 1 worker need 0.9 CPU for each worker and 0.05 CPU for each slot, and the cluster has room for "
        "2 such slots: 1 node with 2 CPU"
    )
    assert shortfall(RunSettings(train=Settings(threads=4)), [*laptop, {"CPU": 3.0}]) == (
        "a worker needs 3.9 CPU on one node, and the largest node has 3 CPU"
    )
    gpus = [{"CPU": 64.0}, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 2.0}]
    assert shortfall(RunSettings(train=CUDA, gpus_per_worker=4), gpus) == (
        "a worker needs 0.9 CPU and 4 GPU on one node, and the largest node has 8 CPU and 2 GPU"
    )
    assert shortfall(RunSettings(train=CUDA, workers_per_slot=4, placement="strict-pack"), gpus) == (
        "1 slot of 4 workers, placed by strict-pack, need 0.9 CPU and 1 GPU for each worker and 0.05 CPU for each slot,"
        " and the cluster has room for 0 such slots: 1 node with 64 CPU and 0 GPU, 2 nodes with 8 CPU and 2 GPU"
    )
    assert "the largest node has 0 CPU" in shortfall(RunSettings(), [])


class Cluster:
    """Nodes of 1 CPU that come and go, and the time."""

    def __init__(self, nodes: int) -> None:
        self.count, self.time = nodes, 0.0

    def room(self, settings: RunSettings) -> Room:
        return Room(settings, lambda: [{"CPU": 1.0}] * self.count, lambda: self.time)

    def become(self, nodes: int) -> None:
        self.count, self.time = nodes, self.time + 60


def test_room_follows_the_nodes(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(2)
    as_many_as_fit, two = cluster.room(RunSettings()), cluster.room(RunSettings(slots=2))
    assert (as_many_as_fit.slots(), two.slots()) == (2, 2)
    assert caplog.messages == []
    cluster.count = 3
    assert as_many_as_fit.slots() == 2, "nodes are not asked at every step"
    cluster.become(3)
    assert (as_many_as_fit.slots(), two.slots()) == (3, 2)
    cluster.become(1)
    caplog.clear()
    assert (as_many_as_fit.slots(), two.slots()) == (1, 1)
    assert caplog.messages == [
        "the cluster has room for 1 slot now",
        "the cluster has room for 1 slot now; waiting for nodes for 1 more",
    ]
    cluster.become(0)
    assert (as_many_as_fit.slots(), two.slots()) == (1, 1), "one slot waits for the first node"


def test_with_an_autoscaler_all_slots_ask_for_their_nodes() -> None:
    cluster = Cluster(1)
    assert cluster.room(RunSettings(slots=4, wait_for_nodes=5)).slots() == 4
    assert cluster.room(RunSettings(wait_for_nodes=5)).slots() == 1


def test_a_cluster_that_is_too_small_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from isoloss.run import cluster

    monkeypatch.setattr(cluster, "nodes", lambda: [{"CPU": 2.0}])
    cluster.require_room(RunSettings())
    cluster.require_room(RunSettings(slots=2))
    with pytest.raises(
        ClusterError, match=r"room for 2 such slots: 1 node with 2 CPU; ask for fewer .* --wait-for-nodes"
    ):
        cluster.require_room(RunSettings(slots=3))
    cluster.require_room(RunSettings(slots=3, wait_for_nodes=1))
