"""A cluster without a node to work on: Ray's own autoscaler adds nodes for the slots, and takes them away again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray.util
from benchmarks.chaos.cluster import ENVIRONMENT, OBJECT_STORE_BYTES
from command import MARK, Command, command_line, end_processes, free_port, marked, until

from isoloss.run.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.long]

STUDY = """
from isoloss import AdamW, Decoder, Evaluation, Linear, Log, SpamLang, Steps, Study

study = Study(
    name="scaled",
    question="Do nodes come for the slots?",
    task=SpamLang(vocab_size=16, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps(1500, batch_size=8),
    axes={"optimizer.learning_rate": Log(1e-3, 1e-1, points=4)},
    evaluation=Evaluation(sequences=32, points=12),
)
"""
MOST_NODES = 2


def config(gcs_address: str) -> dict[str, object]:
    """Return an autoscaler's configuration whose nodes are further raylets on this machine."""
    machine = {"CPU": 1, "object_store_memory": OBJECT_STORE_BYTES}
    return {
        "cluster_name": "scaled", "max_workers": MOST_NODES, "idle_timeout_minutes": 0.1, "upscaling_speed": 1.0,
        "provider": {
            "type": "fake_multinode", "use_node_id_as_ip": True, "disable_node_updaters": True,
            "disable_launch_config_check": True, "gcs_address": gcs_address,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "machine": {"resources": machine, "node_config": {}, "min_workers": 0, "max_workers": MOST_NODES},
        },
        "auth": {}, "docker": {}, "file_mounts": {}, "cluster_synced_files": [], "file_mounts_sync_continuously": False,
        "rsync_exclude": [], "rsync_filter": [], "initialization_commands": [], "setup_commands": [],
        "head_setup_commands": [], "worker_setup_commands": [], "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    }  # fmt: skip


class Scaled:
    """A Ray head without a CPU, and an autoscaler that may add two nodes of one."""

    def __init__(self, folder: Path, disk: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.environment = {
            **os.environ, **ENVIRONMENT, MARK: self.mark, "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }  # fmt: skip
        self.address = f"{ray.util.get_node_ip_address()}:{free_port()}"
        (folder / "autoscaler.json").write_text(json.dumps(config(self.address)))
        command = [
            Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=0",
            f"--port={self.address.rpartition(':')[2]}", f"--temp-dir={disk}", "--include-dashboard=false",
            f"--dashboard-agent-listen-port={free_port()}", f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--autoscaling-config={folder / 'autoscaler.json'}", "--disable-usage-stats",
        ]  # fmt: skip
        with open(folder / "head.log", "w") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def raylets(self) -> int:
        return sum("/raylet/raylet " in command_line(pid) for pid in marked(self.mark))


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[Scaled]:
    disk = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets need a short path
    started = Scaled(tmp_path, disk)
    try:
        until(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), "no head came up", 120)
        yield started
    finally:
        end_processes(started.mark)
        started.process.wait(30)
        shutil.rmtree(disk, ignore_errors=True)


def test_nodes_come_for_the_slots_that_were_asked_for_and_leave_when_they_are_done(scaled: Scaled) -> None:
    (scaled.folder / "scaled.py").write_text(STUDY)
    run = Command(
        "run", "scaled.py", "--address", scaled.address, "--slots", "2", "--wait-for-nodes", "4",
        "--tracking-uri", "http://127.0.0.1:9", cwd=scaled.folder, environment=scaled.environment,
    )  # fmt: skip
    until(lambda: len(run.pids("ray::RayTrainWorker")) == 2, f"two slots do not work: {run.output}")
    assert scaled.raylets() == 1 + MOST_NODES
    assert run.wait() == 0, run.output
    assert "waiting for nodes, for up to 4 minutes" in run.output
    assert "Traceback" not in run.output
    assert len(Ledger(scaled.folder / ".isoloss/ledger/scaled").finished()) == 4
    until(lambda: scaled.raylets() == 1, "something holds the nodes that the autoscaler added", 120)
