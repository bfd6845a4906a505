"""Calibration: which cells are measured, what is kept of them, and what a plan makes of it; without training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, Log, LowRank, SpamLang, Steps, Study
from isoloss.report.plan import plan_of, sizes_of
from isoloss.run import calibrate as module
from isoloss.run.calibrate import CalibrationError, calibrate, chosen, known
from isoloss.run.cost import START_SECONDS, TRIAL_SECONDS, size_of
from isoloss.run.ledger import Ledger
from isoloss.study import Trial
from isoloss.train.settings import Settings

STUDY = Study(
    name="sizes",
    question="What does it cost?",
    task=SpamLang(vocab_size=100, sequence_length=5),
    model=Decoder(width=32, depth=1, attention_heads=1),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-3),
    budget=Steps(20, batch_size=4),
    axes={
        "head": Choice(Linear(), LowRank(rank=4), LowRank(rank=16), LowRank(rank=2)),
        "budget": Choice(Steps(20, batch_size=4), Steps(200, batch_size=4)),
        "optimizer.learning_rate": Log(1e-3, 1e-1, points=3),
    },
    replicates=2,
    evaluation=Evaluation(sequences=2, points=4),
)
SETTINGS = Settings()


class Machine:
    """Stands for the processes in which cells are trained: update time by head, and what was asked of it."""

    def __init__(self, torch: str = "2.13.0", factor: float = 1.0) -> None:
        self.torch, self.factor = torch, factor
        self.trials: list[Trial] = []

    def __call__(self, trial: Trial, settings: Settings, clock: str) -> dict[str, Any]:
        self.trials.append(trial)
        return {
            "setup_seconds": 0.5,
            "update_seconds": self.factor * trial.parameters / 1e6,
            "evaluation_seconds": 0.1,
            "memory_bytes": 10**7 + 40 * trial.parameters,
            "process_bytes": 3 * 10**8,
            "hardware": "Some Chip (tm)",
            "torch": self.torch,
        }


def test_smallest_and_largest_come_first_and_then_what_costs_most() -> None:
    sizes = sizes_of(STUDY)
    assert [count for _, count in sizes] == [6] * 8  # four heads, two budgets; rates and replicates cost the same
    heads = [trial.head for trial in chosen(sizes)]
    # By updates the ranks 2, 4, 16 and then the full head of 100 * 32 come in this order.
    assert heads == [LowRank(rank=2), Linear(), LowRank(rank=16), LowRank(rank=4)]
    base = {name: getattr(sizes[0][0], name) for name in Trial.model_fields}
    ranks = {rank: Trial(**{**base, "head": LowRank(rank=rank)}) for rank in range(1, 7)}
    counts = {1: 1, 2: 1, 3: 50, 4: 1, 5: 1, 6: 1}
    order = [trial.head for trial in chosen([(trial, counts[rank]) for rank, trial in ranks.items()])]
    assert order == [LowRank(rank=rank) for rank in (1, 6, 4, 3, 5, 2)]
    assert [trial.head for trial in chosen([(trial, 1) for trial, _ in sizes[:1]])] == [Linear()]


def test_what_was_measured_is_kept_by_machine_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_of(STUDY)
    monkeypatch.setattr(module, "_measured_in_child", first := Machine())
    heard: list[str] = []
    made = calibrate(sizes, SETTINGS, 60, tmp_path, lambda cell: heard.append(cell.size))
    assert [size_of(trial) for trial in first.trials] == heard == [cell.size for cell in made.cells]
    assert known(tmp_path, SETTINGS) == made
    assert known(tmp_path, Settings(dtype="bfloat16")) is None
    assert known(tmp_path, Settings(micro_batch=2)) is None
    # At least two cells, however little time there is; those of before stay, unless torch is another.
    monkeypatch.setattr(module, "_measured_in_child", second := Machine(factor=3.0))
    again = calibrate(sizes, SETTINGS, 0, tmp_path)
    assert len(second.trials) == 2
    changed = {cell.size for cell in again.cells if cell not in made.cells}
    assert (len(again.cells), changed) == (4, {size_of(trial) for trial in second.trials})
    monkeypatch.setattr(module, "_measured_in_child", Machine(torch="2.14.0"))
    assert len(calibrate(sizes, SETTINGS, 0, tmp_path).cells) == 2
    [file] = (tmp_path / "calibrations").iterdir()
    file.write_text(file.read_text()[:-20])
    with pytest.raises(CalibrationError, match=r"is no calibration that this isoloss reads .*; delete it"):
        known(tmp_path, SETTINGS)


def test_a_cell_that_cannot_be_trained_here_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback ...\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *arguments, **options: failed)
    monkeypatch.setitem(sys.modules, "isoloss.run.cluster", type("Fake", (), {"WORKER_ENVIRONMENT": {}}))
    with pytest.raises(CalibrationError, match=r"cannot be trained on cpu here: torch.OutOfMemoryError: CUDA out of"):
        calibrate(sizes_of(STUDY), SETTINGS, 60, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_plan_adds_up_what_its_cells_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_measured_in_child", Machine())
    made = calibrate(sizes_of(STUDY), SETTINGS, 60, tmp_path)
    facts = plan_of(STUDY, Ledger(tmp_path / "ledger"), "cpu", 2, made, price=2.5)
    work = 0.0
    for _, trial in STUDY.trials():
        # Evaluated after 0, 1, 4 (or 14) updates and the last: four times.
        work += 0.5 + trial.steps * trial.parameters / 1e6 + 4 * 0.1 + TRIAL_SECONDS
    assert facts["seconds_left"] == pytest.approx(work / 2 + START_SECONDS)
    assert facts["hours"] == facts["hours_left"] == pytest.approx((work + 2 * START_SECONDS) / 3600)
    assert facts["price"] == pytest.approx(2.5 * facts["hours"])
    assert facts["hours_name"] == "slot-hours"
    assert sum(group["hours"] for group in facts["groups"]) == pytest.approx(work / 3600)
    largest = max(trial.parameters for _, trial in STUDY.trials())
    assert facts["memory_bytes"] == 10**7 + 40 * largest
    assert sum(group["tokens"] for group in facts["groups"]) == facts["tokens"] == 24 * (20 + 200) * 4 * 4
    assert facts["speed_from"].startswith("a calibration of 4 cells on Some Chip (tm), ")
    json.dumps(facts)


class Untrained:
    """Stands for a training whose parts take known times, on a clock of its own, and which holds 64 MB meanwhile."""

    now = 0.0

    def __init__(self, trial: Trial, settings: Settings, workers: object) -> None:
        import numpy as np
        import torch

        self.step, self.evaluate_after, self.device = 0, {0, 1, 2}, torch.device("cpu")
        Untrained.now += 2.0
        self.held = np.ones(8_000_000)

    def update(self) -> None:
        compiles, probes = self.step == 0, self.step + 1 in self.evaluate_after
        Untrained.now += 0.02 + 0.5 * compiles + 0.1 * probes
        self.step += 1

    def finite(self) -> bool:
        return True

    def evaluate(self) -> None:
        Untrained.now += 0.4

    def close(self) -> None:
        self.held = None


def test_a_trials_parts_are_timed_apart_and_its_memory_is_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    from isoloss.train import measure as training

    monkeypatch.setattr(training, "Training", Untrained)
    ballast = bytearray(300_000_000)  # what was held before, and freed, is no trial's memory
    ballast[::4096] = b"x" * len(ballast[::4096])
    del ballast
    found = training.measure(next(trial for _, trial in STUDY.trials()), SETTINGS, 1.0, lambda: Untrained.now)
    assert found["update_seconds"] == pytest.approx(0.02)
    assert found["evaluation_seconds"] == pytest.approx(0.5)  # with what its probes add to an update
    assert found["setup_seconds"] == pytest.approx(2.0 + 0.5 - 0.1)  # the first evaluation was timed without probes
    assert 60e6 < found["memory_bytes"] < 80e6
    assert found["process_bytes"] < 3e9
