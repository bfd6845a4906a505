"""Whether a cluster can hold studies: its nodes have the same packages, see the same ledgers, and agree on the time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from isoloss.checkup import NO_GPUS, Check, Gpus, check_gpus, find_gpus, versions, without_build
from isoloss.run import cluster
from isoloss.run.ports import check_dashboard, check_ports
from isoloss.run.state import State
from isoloss.run.store_checkup import seen_from_here, sign_in

NODE_SECONDS = 120.0
"""How long a node may take to answer: it starts a process first."""

CLOCK_SECONDS = 2.0
"""Difference of clocks from which times in reports would mislead."""


@dataclass(frozen=True)
class Node:
    """What a node says of itself: ``reads`` and ``writes`` of the ledgers, ``ahead_s`` of its clock and its error.

    ``offered`` is how many GPUs Ray gives away there.
    """

    name: str
    versions: Mapping[str, str]
    reads: bool
    writes: bool
    ahead_s: float
    error_s: float
    gpus: Gpus = NO_GPUS
    offered: float = 0.0


def check_cluster(address: str, place: State) -> list[Check]:
    """Say what a cluster has, and whether all of its nodes can work on studies whose ledgers are in ``place``.

    Raises ClusterError when there is no cluster at ``address``, LedgerError when ledgers cannot be written here.
    """
    cluster.connect(address)
    alive = [node for node in ray.nodes() if node["Alive"]]
    has = ray.cluster_resources()
    totals = f"{len(alive)} node{'s' * (len(alive) != 1)}, {has.get('CPU', 0):g} CPU, {has.get('GPU', 0):g} GPU"
    nodes, silent = [], []
    with sign_in(place) as (store, text):
        for node in alive:
            try:
                nodes.append(_ask(node, store.uri, text))
            except RayError as error:
                silent.append(f"{node['NodeManagerAddress']} ({type(error).__name__})")
    reached = [check_dashboard(_dashboard()), check_ports(place for node in alive for place in _ports(node))]
    if silent:
        return [Check("cluster", "failed", f"{totals}; no answer from {', '.join(silent)}"), *reached]
    return [Check("cluster", "ok", totals), *reached, *judged(nodes, versions(), place.ledgers)]


def _dashboard() -> str:
    """Return the dashboard's address, or an empty text where there is none."""
    found = ray.init(ignore_reinit_error=True, logging_level="ERROR").dashboard_url
    return f"http://{found}" if found else ""


def _ports(node: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Return where a node listens for others: for tasks, for objects, and for Prometheus."""
    host = node["NodeManagerAddress"]
    known = {"raylet": "NodeManagerPort", "object manager": "ObjectManagerPort", "metrics": "MetricsExportPort"}
    return [(what, host, node[name]) for what, name in known.items()]


def judged(nodes: list[Node], here: Mapping[str, str], place: str) -> list[Check]:
    """Return what is to be said of the nodes, beside versions ``here``."""
    other = [
        f"{node.name} has {name} {version}, not {here[name]}"
        for node in nodes
        for name, version in node.versions.items()
        if name != "isoloss" and without_build(version) != without_build(here[name])  # isoloss travels with a job
    ]
    blind = [node.name for node in nodes if not (node.reads and node.writes)]
    late = [
        f"{node.name} by {node.ahead_s:+.1f} s" for node in nodes if abs(node.ahead_s) - node.error_s > CLOCK_SECONDS
    ]
    gpus = [_judged_gpus(node) for node in nodes if node.gpus.there or node.offered]
    return [
        *gpus,
        Check("nodes", "failed", f"{'; '.join(other)}: install the same everywhere")
        if other
        else Check("nodes", "ok", "all nodes have the same versions as this one"),
        Check("shared", "failed", f"{place} {_unseen(place, blind)}")
        if blind
        else Check("shared", "ok", f"all nodes read and write {place}"),
        Check("clocks", "warning", f"clocks differ: {', '.join(late)}; times in reports would mislead")
        if late
        else Check("clocks", "ok", "clocks agree"),
    ]


def _unseen(place: str, blind: list[str]) -> str:
    if "://" in place:
        return f"cannot be read and written on {', '.join(blind)}: give these nodes its address and credentials"
    return f"is not the same folder on {', '.join(blind)}: give a shared --state or --ledger"


def _judged_gpus(node: Node) -> Check:
    check = check_gpus(node.gpus)
    if len(node.gpus.usable) < node.offered:
        offer = f"Ray offers {node.offered:g} GPUs, and torch can use {len(node.gpus.usable)}"
        return Check("gpus", "failed", f"{node.name}: {offer} ({check.text})")
    return Check("gpus", check.state, f"{node.name}: {check.text}")


def _ask(node: dict[str, Any], address: str, text: str) -> Node:
    here = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
    look, clock, gpus = (
        ray.remote(num_cpus=0)(task).options(scheduling_strategy=here) for task in (_look, _clock, find_gpus)
    )
    reads, writes, found = ray.get(look.remote(address, text), timeout=NODE_SECONDS)
    ray.get(clock.remote(), timeout=NODE_SECONDS)  # starts a process, which would count as delay
    asked = time.time()
    told = ray.get(clock.remote(), timeout=NODE_SECONDS)
    answered = time.time()
    return Node(
        node["NodeManagerAddress"], found, reads, writes, told - (asked + answered) / 2, (answered - asked) / 2,
        ray.get(gpus.remote(all_of_them=True), timeout=NODE_SECONDS), node["Resources"].get("GPU", 0.0),
    )  # fmt: skip


def _clock() -> float:
    return time.time()


def _look(address: str, text: str) -> tuple[bool, bool, dict[str, str]]:
    """Return, from a node: whether it reads the sign and writes beside it, and its versions."""
    return *seen_from_here(address, text), versions()
