"""A Ray cluster of three nodes on this machine, in a process of its own that takes one command a line.

Commands: ``nodes`` (the process ids of the raylets that may be killed), ``kill PID`` (kill -9 that node), ``add``,
``left`` (what drivers left behind: placement groups that hold resources, actors that live), ``end``. Each is answered
by one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

NODES = 3
OBJECT_STORE_BYTES = 80 << 20

RAYS_OWN = "AutoscalingCoordinator"
"""An actor that Ray keeps, one a cluster, once anything was trained."""

ENVIRONMENT = {
    "RAY_memory_monitor_refresh_ms": "0",  # others' memory on this machine is no reason to kill
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_niceness": "0",  # 15 as a rule, and then whatever else the machine does comes first
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Set for the cluster: a dead node is noticed after 3 s rather than 13."""


class Nodes:
    """The cluster as the chaos run sees it: what Ray prints goes to ``folder``, and its own files to ``disk``.

    Without its ``dashboard`` Ray Train cannot tell when a driver has died, and leaves an actor behind.
    """

    def __init__(
        self, folder: Path, disk: Path, environment: dict[str, str], count: int = NODES, dashboard: bool = False
    ) -> None:
        with open(folder / "cluster.log", "w") as log:
            self.process = Popen(
                [sys.executable, __file__, str(disk), str(count), str(int(dashboard))], env=environment, text=True,
                stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.address: str = self._answer()

    def ask(self, command: str) -> Any:
        """Send a command and return its answer."""
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        """Shut the cluster down."""
        self.ask("end")
        self.process.wait(60)

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the cluster's process ended; see cluster.log")
        return json.loads(line)


def _serve(folder: str, count: int, dashboard: bool) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints to the log

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": folder, "include_dashboard": dashboard})
    for _ in range(count - 1):
        cluster.add_node(**node)
    answer(cluster.address)
    for line in sys.stdin:
        command, _, pid = line.strip().partition(" ")
        if command == "nodes":
            answer(sorted(map(_raylet, cluster.worker_nodes)))
        elif command == "kill":
            [found] = [one for one in cluster.worker_nodes if _raylet(one) == int(pid)]
            cluster.remove_node(found, allow_graceful=False)
            answer(int(pid))
        elif command == "add":
            answer(_raylet(cluster.add_node(**node)))
        elif command == "left":
            answer(_left(cluster.address))
        elif command == "end":
            break
    cluster.shutdown()
    answer("ended")


def _raylet(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


def _left(address: str) -> dict[str, list[str]]:
    import ray
    from ray._private.state import actors
    from ray.util import placement_group_table

    ray.init(address=address, log_to_driver=False)
    groups = [
        f"{key} {group['state']}" for key, group in placement_group_table().items() if group["state"] != "REMOVED"
    ]
    alive = [
        one["ActorClassName"]
        for one in actors().values()
        if one["State"] != "DEAD" and RAYS_OWN not in one["ActorClassName"]
    ]
    ray.shutdown()
    return {"placement groups": groups, "actors": alive}


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
