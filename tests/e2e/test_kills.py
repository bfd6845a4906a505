"""Any process may be killed at any moment: nothing finished is repeated, and the numbers come out the same."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
from pathlib import Path

import pandas as pd
import pytest
from command import Command, isoloss, until

from isoloss.run.ledger import Ledger

pytestmark = pytest.mark.slow

STUDY = """
from isoloss import AdamW, Choice, Decoder, Evaluation, Log, LowRank, SpamLang, Steps, Study

study = Study(
    name="kills",
    question="Do the numbers survive?",
    task=SpamLang(vocab_size=32, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=LowRank(rank=4),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps(700, batch_size=8),
    axes={"task.vocab_size": Choice(16, 64), "optimizer.learning_rate": Log(1e-3, 1e-1, points=3)},
    evaluation=Evaluation(sequences=32, points=24),
)
"""
TRIALS = 6
WORKER, SLOT = "ray::RayTrainWorker", "ray::ResourceTrainable"


class Place:
    """A folder with a study file and a state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "kills.py").write_text(STUDY)
        self.table = folder / ".isoloss/reports/kills/trials.parquet"
        self.results = folder / ".isoloss/ledger/kills/results"
        self.checkpoints = folder / ".isoloss/ledger/kills/checkpoints"

    def start(self, *options: str) -> Command:
        return Command("run", "kills.py", "--slots", "1", "--checkpoint-seconds", "0.2", *options, cwd=self.folder)

    def finished(self) -> dict[str, tuple[int, int]]:
        """Identity and time of writing of every result: a trial that was trained again would change them."""
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in self.results.glob("*.arrow")}

    def wait_for_work(self, results: int = 1) -> None:
        """Wait until some trials are finished and another can be continued from a checkpoint."""
        until(lambda: len(self.finished()) >= results and list(self.checkpoints.glob("*.pt")), "no trial got going")

    def numbers(self) -> dict[str, bytes]:
        """The table of trials, and every curve by key: all that must not depend on what happened to the run."""
        ledger = Ledger(self.folder / ".isoloss/ledger/kills")
        curves = {key: dataclasses.replace(ledger.result(key), machine={}).to_bytes() for key in ledger.finished()}
        return {"trials": self.table.read_bytes(), **curves}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    place = Place(tmp_path_factory.mktemp("undisturbed"))
    code, output = isoloss("run", "kills.py", "--slots", "2", cwd=place.folder)
    assert code == 0, output
    assert len(place.finished()) == TRIALS
    return place.numbers()


def assert_whole(place: Place, before: dict[str, tuple[int, int]], undisturbed: dict[str, bytes]) -> None:
    after = place.finished()
    assert {name: after[name] for name in before} == before, "a finished trial was trained again"
    assert len(after) == TRIALS
    assert not list(place.checkpoints.iterdir()), "a finished trial left its checkpoint"
    assert place.numbers() == undisturbed


def test_killed_ranks_and_slots_cost_no_trial_and_mlflow_away_costs_nothing(
    place: Place, undisturbed: dict[str, bytes]
) -> None:
    run = place.start("--tracking-uri", "http://127.0.0.1:9")
    try:
        place.wait_for_work()
        run.kill(WORKER)
        place.wait_for_work(results=3)
        before = place.finished()
        run.kill(SLOT)
        assert run.wait() == 0, run.output
        assert "a slot died" in run.output
        assert "later: isoloss publish kills" in run.output
        assert "Traceback" not in run.output
        assert_whole(place, before, undisturbed)
    finally:
        run.end()
    for written in (TRIALS, 0):  # the second time there is nothing left to write
        code, output = isoloss("publish", "kills", "--json", cwd=place.folder)
        assert code == 0, output
        facts = json.loads(output)
        assert (facts["trials"], facts["written"]) == (TRIALS, written)


def test_a_driver_that_is_interrupted_and_then_killed_is_continued_by_running_again(
    place: Place, undisturbed: dict[str, bytes]
) -> None:
    run = place.start()
    try:
        place.wait_for_work()
        assert_second_driver_is_refused(place, run)
        os.kill(run.process.pid, signal.SIGINT)
        assert run.wait() == 130, run.output
        assert "run the same command to go on" in run.output
        assert "Traceback" not in run.output
    finally:
        run.end()
    after_interrupt = place.finished()
    run = place.start()
    try:
        place.wait_for_work(results=len(after_interrupt) + 1)
        os.kill(run.process.pid, signal.SIGKILL)
        run.wait()
        until(lambda: not run.pids(WORKER), "workers outlived their driver", 30)
    finally:
        run.end()
    after_kill = place.finished()
    assert len(after_interrupt) < len(after_kill) < TRIALS
    assert {name: after_kill[name] for name in after_interrupt} == after_interrupt
    code, output = isoloss("run", "kills.py", "--slots", "1", cwd=place.folder)
    assert code == 0, output
    assert_whole(place, after_kill, undisturbed)


def assert_second_driver_is_refused(place: Place, run: Command) -> None:
    code, output = isoloss("run", "kills.py", cwd=place.folder)
    assert code == 3
    assert f"another driver is running this study (process {run.process.pid} on " in output
    assert "Traceback" not in output
    code, output = isoloss("status", "kills", "--json", cwd=place.folder)
    assert code == 0
    assert json.loads(output)["driver"].startswith(f"process {run.process.pid} ")


def test_one_of_two_ranks_is_killed_and_two_workers_agree_with_one(place: Place, undisturbed: dict[str, bytes]) -> None:
    run = place.start("--workers-per-slot", "2")
    try:
        place.wait_for_work()
        before = place.finished()
        run.kill(WORKER)
        assert run.wait() == 0, run.output
    finally:
        run.end()
    after = place.finished()
    assert {name: after[name] for name in before} == before, "a finished trial was trained again"
    one, two = (pd.read_parquet(io.BytesIO(table)) for table in (undisturbed["trials"], place.table.read_bytes()))
    pd.testing.assert_frame_equal(two, one, rtol=1e-3, atol=1e-5)
