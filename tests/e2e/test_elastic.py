"""Runs end at checkpoints when they are told to, and their slots follow the nodes of the cluster."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.chaos.cluster import ENVIRONMENT, Nodes
from command import MARK, Command, end_processes, until

from isoloss.run.ledger import Ledger
from isoloss.study_file import load_study
from isoloss.train.loop import train
from isoloss.train.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.long]

STUDY = """
from isoloss import AdamW, Decoder, Evaluation, Log, LowRank, SpamLang, Steps, Study

study = Study(
    name="elastic",
    question="Do the slots follow the nodes?",
    task=SpamLang(vocab_size=32, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=LowRank(rank=4),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps(4000, batch_size=8),
    axes={"optimizer.learning_rate": Log(1e-3, 1e-1, points=4)},
    evaluation=Evaluation(sequences=32, points=12),
)
"""
TRIALS, STEPS = 4, 4000  # so long that a slot starts before a trial of another ends
WORKER, SLOT = "ray::RayTrainWorker", "ray::Slot"


class Place:
    """A study on a cluster of one node with one CPU, to which nodes are added."""

    def __init__(self, folder: Path, disk: Path) -> None:
        self.folder = folder
        self.study = folder / "elastic.py"
        self.study.write_text(STUDY)
        self.ledger = Ledger(folder / ".isoloss/ledger/elastic")
        self.environment = {**os.environ, **ENVIRONMENT, MARK: uuid.uuid4().hex}
        self.nodes = Nodes(folder, disk, self.environment, count=1)

    def start(self, checkpoint_seconds: str) -> Command:
        options = "--address", self.nodes.address, "--checkpoint-seconds", checkpoint_seconds
        away = "--tracking-uri", "http://127.0.0.1:9"
        return Command("run", "elastic.py", *options, *away, cwd=self.folder, environment=self.environment)

    def claims(self) -> int:
        return len(self.ledger.claims())

    def checkpoints(self) -> set[str]:
        return {path.stem for path in Path(self.ledger.root, "checkpoints").glob("*.pt")}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    disk = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets need a short path
    place = Place(tmp_path, disk)
    try:
        yield place
    finally:
        end_processes(place.environment[MARK])
        place.nodes.process.wait(30)
        shutil.rmtree(disk, ignore_errors=True)


def undisturbed(study_file: Path, keys: set[str]) -> dict[str, bytes]:
    """Return the numbers of some trials of a study file, trained here and at one go."""
    torch.set_num_threads(1)
    trials = [trial for _, trial in load_study(str(study_file)).trials() if trial.key in keys]
    return {trial.key: dataclasses.replace(train(trial, Settings()), machine={}).to_bytes() for trial in trials}


def test_a_run_stops_at_a_checkpoint_and_goes_on_while_nodes_come_and_go(place: Place) -> None:
    stopped_at = stop_in_mid_trial(place)
    run = place.start(checkpoint_seconds="0.3")
    until(lambda: run.pids(SLOT), "no slot came")
    assert place.claims() == 2, "one node holds one slot: its trial is the one that was stopped"
    added = place.nodes.ask("add")
    until(lambda: place.claims() == 3, "no second slot came with the new node", 60)
    until(lambda: len(place.checkpoints()) == 2, "the second slot does not work")
    assert len(run.pids(WORKER)) == 2
    working = place.checkpoints()
    place.nodes.ask(f"kill {added}")
    assert run.wait() == 0, run.output
    assert "the cluster has room for 2 slots now" in run.output
    assert "the cluster has room for 1 slot now" in run.output
    assert "Traceback" not in run.output
    results = {key: place.ledger.result(key) for key in place.ledger.finished()}
    assert len(results) == TRIALS
    resumed_at = {key: result.machine["resumed_at"] for key, result in results.items()}
    assert all(resumed_at[key] >= step for key, step in stopped_at.items())
    moved = {key for key in working if resumed_at[key] > stopped_at.get(key, 0)}
    assert moved, "the trial of the lost node did not go on elsewhere"
    numbers = {key: dataclasses.replace(results[key], machine={}).to_bytes() for key in {*stopped_at, *moved}}
    assert numbers == undisturbed(place.study, set(numbers))


def stop_in_mid_trial(place: Place) -> dict[str, int]:
    """Stop a run that saves no checkpoints by itself, as Kubernetes would; return the steps it saved, by key."""
    run = place.start(checkpoint_seconds="1000")
    until(place.ledger.finished, "no trial finished")
    time.sleep(1)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 130, run.output
    assert "stopping: running trials save their state" in run.output
    assert "run the same command to go on" in run.output
    assert "Traceback" not in run.output
    steps = {
        key: torch.load(Path(place.ledger.root, "checkpoints", f"{key}.pt"), weights_only=True)["step"]
        for key in place.checkpoints()
    }
    assert len(steps) == 1, "one trial was running"
    assert all(0 < step < STEPS for step in steps.values())
    return steps
