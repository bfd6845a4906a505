"""Whether a cluster can hold studies: its nodes have the same packages, see the same folder, and agree on the time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from isoloss.checkup import Check, sign, versions
from isoloss.run import cluster

NODE_SECONDS = 120.0
"""How long a node may take to answer: it starts a process first."""

CLOCK_SECONDS = 2.0
"""Difference of clocks from which times in reports would mislead."""


@dataclass(frozen=True)
class Node:
    """What a node says of itself: ``reads`` and ``writes`` of the folder, ``ahead_s`` of its clock and its error."""

    name: str
    versions: Mapping[str, str]
    reads: bool
    writes: bool
    ahead_s: float
    error_s: float


def check_cluster(address: str, folder: Path) -> list[Check]:
    """Say what a cluster has, and whether all of its nodes can work on studies below ``folder``.

    Raises ClusterError when there is no cluster at ``address``.
    """
    cluster.connect(address)
    alive = [node for node in ray.nodes() if node["Alive"]]
    has = ray.cluster_resources()
    totals = f"{len(alive)} node{'s' * (len(alive) != 1)}, {has.get('CPU', 0):g} CPU, {has.get('GPU', 0):g} GPU"
    nodes, silent = [], []
    with sign(folder) as (file, text):
        for node in alive:
            try:
                nodes.append(_ask(node["NodeID"], node["NodeManagerAddress"], file, text))
            except RayError as error:
                silent.append(f"{node['NodeManagerAddress']} ({type(error).__name__})")
    if silent:
        return [Check("cluster", "failed", f"{totals}; no answer from {', '.join(silent)}")]
    return [Check("cluster", "ok", totals), *judged(nodes, versions(), folder)]


def judged(nodes: list[Node], here: Mapping[str, str], folder: Path) -> list[Check]:
    """Return what is to be said of the nodes, beside versions ``here``."""
    other = [
        f"{node.name} has {name} {version}, not {here[name]}"
        for node in nodes
        for name, version in node.versions.items()
        if name != "isoloss" and version != here[name]  # which travels with a job
    ]
    blind = [node.name for node in nodes if not (node.reads and node.writes)]
    late = [
        f"{node.name} by {node.ahead_s:+.1f} s" for node in nodes if abs(node.ahead_s) - node.error_s > CLOCK_SECONDS
    ]
    return [
        Check("nodes", "failed", f"{'; '.join(other)}: install the same everywhere")
        if other
        else Check("nodes", "ok", "all nodes have the same versions as this one"),
        Check("shared", "failed", f"{folder} is not the same folder on {', '.join(blind)}: give a shared --state")
        if blind
        else Check("shared", "ok", f"all nodes read and write {folder}"),
        Check("clocks", "warning", f"clocks differ: {', '.join(late)}; times in reports would mislead")
        if late
        else Check("clocks", "ok", "clocks agree"),
    ]


def _ask(node_id: str, name: str, file: Path, text: str) -> Node:
    here = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    look = ray.remote(num_cpus=0)(_look).options(scheduling_strategy=here)
    ray.get(look.remote(str(file), text), timeout=NODE_SECONDS)  # starts a process, which would count as delay
    asked = time.time()
    reads, writes, found, clock = ray.get(look.remote(str(file), text), timeout=NODE_SECONDS)
    answered = time.time()
    return Node(name, found, reads, writes, clock - (asked + answered) / 2, (answered - asked) / 2)


def _look(file: str, text: str) -> tuple[bool, bool, dict[str, str], float]:
    """Return, from a node: whether it reads the file and writes beside it, its versions, and its time."""
    clock, reads, writes = time.time(), False, False
    with suppress(OSError):
        reads = Path(file).read_text() == text
        beside = Path(f"{file}.{uuid.uuid4().hex}")
        beside.write_text(text)
        beside.unlink()
        writes = True
    return reads, writes, versions(), clock
