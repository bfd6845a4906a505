"""Any process may be killed at any moment: nothing finished is repeated, and the numbers come out the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command import Command, isoloss, until
from undisturbed import numbers, reference

from isoloss.run.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.long]

STUDY = """
from isoloss import AdamW, Choice, Decoder, Evaluation, Log, LowRank, SpamLang, Steps, Study

study = Study(
    name="kills",
    question="Do the numbers survive?",
    task=SpamLang(vocab_size=32, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=LowRank(rank=4),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps(400, batch_size=8),
    axes={"task.vocab_size": Choice(16, 64), "optimizer.learning_rate": Log(1e-3, 1e-1, points=4)},
    evaluation=Evaluation(sequences=32, points=24),
)
"""
TRIALS = 8
WORKER, SLOT = "ray::RayTrainWorker", "ray::Slot"


class Place:
    """A folder with a study file and a state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.study = folder / "kills.py"
        self.study.write_text(STUDY)
        self.ledger = Ledger(folder / ".isoloss/ledger/kills")
        self.results = Path(self.ledger.root, "results")
        self.checkpoints = Path(self.ledger.root, "checkpoints")

    def start(self) -> Command:
        """Run the study on one slot of two workers, with an MLflow that is away."""
        options = "--slots", "1", "--workers-per-slot", "2", "--checkpoint-seconds", "0.2"
        return Command("run", "kills.py", *options, "--tracking-uri", "http://127.0.0.1:9", cwd=self.folder)

    def finished(self) -> dict[str, tuple[int, int]]:
        """Identity and time of writing of every result: a trial that was trained again would change them."""
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in self.results.glob("*.arrow")}

    def wait_for_work(self, results: int = 1) -> None:
        """Wait until so many trials are finished and another can be continued from a checkpoint."""
        until(lambda: len(self.finished()) >= results and list(self.checkpoints.glob("*.pt")), "no trial got going")

    def assert_whole(self, before: dict[str, tuple[int, int]], undisturbed: dict[str, bytes]) -> None:
        after = self.finished()
        assert {name: after[name] for name in before} == before, "a finished trial was trained again"
        assert len(after) == TRIALS
        assert not list(self.checkpoints.iterdir()), "a finished trial left its checkpoint"
        assert numbers(self.ledger, self.folder / ".isoloss/reports/kills/trials.parquet") == undisturbed


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_killed_ranks_slots_and_drivers_cost_no_trial_and_neither_does_mlflow_away(
    place: Place, tmp_path: Path
) -> None:
    undisturbed = reference(place.study, tmp_path / "reference", workers=2)
    run = place.start()
    try:
        until(place.ledger.driven_by, "the driver did not take its ledger")
        assert_second_driver_is_refused(place, run)
        place.wait_for_work()
        run.kill(WORKER)
        place.wait_for_work(results=2)
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
    run = place.start()
    try:
        place.wait_for_work(results=len(after_kill) + 1)
        before = place.finished()
        run.kill(SLOT)
        assert run.wait() == 0, run.output
        assert "a slot died" in run.output
        assert "isoloss publish kills" in run.output
        assert "Traceback" not in run.output
        place.assert_whole(before, undisturbed)
        assert {name: before[name] for name in after_kill} == after_kill
    finally:
        run.end()
    code, output = isoloss("publish", "kills", "--json", cwd=place.folder)
    assert code == 0, output
    facts = json.loads(output)
    assert (facts["trials"], facts["written"]) == (TRIALS, TRIALS)


def assert_second_driver_is_refused(place: Place, run: Command) -> None:
    code, output = isoloss("run", "kills.py", cwd=place.folder)
    assert code == 3
    assert f"another driver is running this study (process {run.process.pid} on " in output
    assert "Traceback" not in output
    code, output = isoloss("status", "kills", "--json", cwd=place.folder)
    assert code == 0
    assert json.loads(output)["driver"].startswith(f"process {run.process.pid} ")
