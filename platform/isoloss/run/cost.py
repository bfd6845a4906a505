"""What a trial will cost: time and memory, from its size, and from what was measured of trials and machines."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from isoloss.config.base import canonical_json
from isoloss.run.ledger import Ledger
from isoloss.study import Trial

TRIAL_SECONDS, START_SECONDS = 0.1, 30.0
"""What a slot spends on a trial outside its training, and on its start (docs/benchmarks.md)."""

STATE_BYTES = 16
"""Of a parameter in training: itself, its gradient and AdamW's two moments, four bytes each."""

HELD_OUT_LOGITS = 2**24
"""Logits of held-out tokens that are measured at once."""

LOGIT_CHUNK_BYTES = {"cpu": 2**23, "cuda": 2**28}
"""Bytes of the logits that exist at once: the loss goes through its tokens in chunks."""


@dataclass(frozen=True)
class Speed:
    """Seconds that any update and any evaluation take, and floating-point operations a second beyond that.

    ``block_seconds`` is what each block of the model adds to an update, its two ends counting as one each;
    ``setup_seconds`` is what a trial takes before its first update.
    """

    step_seconds: float
    flops_per_second: float
    measured: int = 0
    """How many finished trials or calibrated cells it was fitted to; 0 for an assumption."""
    block_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    setup_seconds: float = 0.0


@dataclass(frozen=True)
class Memory:
    """Bytes that training any trial takes, and those a byte of its activations does: 1 where nothing else is kept."""

    base_bytes: float
    per_activation: float


ASSUMED = {"cpu": Speed(0.008, 2e10), "cuda": Speed(0.01, 1.5e14)}
"""One core of a 2020s server; one data-centre GPU in bfloat16. Assumptions until something has been measured."""

ASSUMED_MEMORY = Memory(0.0, 1.5)


# --- size


def flops(trial: Trial) -> float:
    """Return the floating-point operations of a trial's training and of measuring its held-out loss."""
    return trial.steps * update_flops(trial) + _evaluations(trial) * evaluation_flops(trial)


def update_flops(trial: Trial) -> float:
    """Return the floating-point operations of one update."""
    return trial.flops_per_token * trial.tokens(1)


def evaluation_flops(trial: Trial) -> float:
    """Return the floating-point operations of measuring the held-out loss once, without the probes'."""
    return trial.flops_per_token / 3 * trial.task.held_out_tokens(trial.evaluation.sequences)


def activation_bytes(trial: Trial, device: str, micro_batch: int | None = None) -> float:
    """Return the bytes of the activations, four each, that a worker holds at once, as counted roughly.

    Of each token in training: 8 widths of the model and 4 of the MLP a block. While measuring: the same of a single
    block, of as many tokens as are measured at once. Of either: a chunk of the logits.
    """
    model, vocab_size = trial.model, trial.task.vocab_size
    block = 8 * model.width + 4 * model.mlp_width
    trained = min(micro_batch or trial.batch_size, trial.batch_size) * trial.task.positions
    measured = min(trial.task.held_out_tokens(trial.evaluation.sequences), max(1, HELD_OUT_LOGITS // vocab_size))

    def logits(tokens: float) -> float:
        return min(tokens * vocab_size, LOGIT_CHUNK_BYTES[device] / 4)

    return 4 * max(trained * block * model.depth + logits(trained), measured * block + logits(measured))


def size_of(trial: Trial) -> str:
    """Return what trials share that cost the same an update: a hash of all but optimizer, seeds and number of updates.

    16 hexadecimal digits.
    """
    parts = [trial.task, trial.model, trial.head, trial.batch_size, trial.evaluation]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]


def blocks(trial: Trial) -> int:
    """Return the blocks of a model, its two ends counted as one each: what an update's fixed cost goes by."""
    return trial.model.depth + 2


def _evaluations(trial: Trial) -> int:
    return len(trial.evaluation.steps(trial.steps))


def hours_name(device: str) -> str:
    """Return what an hour of a slot's device is called."""
    return "GPU-hours" if device == "cuda" else "slot-hours"


# --- prediction


def seconds(trial: Trial, speed: Speed) -> float:
    """Return the predicted seconds of a trial on one worker."""
    update = speed.step_seconds + blocks(trial) * speed.block_seconds
    fixed = trial.steps * update + _evaluations(trial) * speed.evaluation_seconds
    return speed.setup_seconds + fixed + flops(trial) / speed.flops_per_second


def memory_bytes(trial: Trial, memory: Memory, device: str, micro_batch: int | None = None) -> float:
    """Return the predicted peak memory of training a trial: base + 16 P + c A.

    P are its parameters, A its ``activation_bytes``; base and c are those of ``memory``. Of the device's memory on
    CUDA, of a CPU worker's beside what its process holds without a trial.
    """
    activations = activation_bytes(trial, device, micro_batch)
    return memory.base_bytes + STATE_BYTES * trial.parameters + memory.per_activation * activations


def fit(trials: Iterable[tuple[Trial, float]], device: str) -> Speed:
    """Return the speed that finished (trial, seconds) show, by least squares of relative errors; else the assumed."""
    pairs = [(trial, taken) for trial, taken in trials if taken > 0]
    if len(pairs) < 2:
        return ASSUMED[device]
    step, per_flop = _relative([(trial.steps, flops(trial)) for trial, _ in pairs], [taken for _, taken in pairs])
    return Speed(step, _inverse(per_flop), len(pairs))


def _relative(
    rows: list[tuple[float, float]], values: list[float], known: list[float] | None = None
) -> tuple[float, float]:
    """Return the non-negative weights by which two columns and what is known come nearest to the values, relatively."""
    import numpy as np
    from scipy.optimize import nnls

    design = np.array(rows, float) / np.array(values)[:, None]
    scale = design.max(axis=0)
    rest = 1 - np.array(known or [0.0] * len(values)) / values
    first, second = nnls(design / scale, rest)[0] / scale
    return float(first), float(second)


def _inverse(value: float) -> float:
    return float("inf") if value == 0 else 1 / value


# --- what was measured


@dataclass(frozen=True)
class Measured:
    """A cell that was calibrated: its size, and what its trial took."""

    name: str
    size: str
    parameters: int
    blocks: int
    update_flops: float
    evaluation_flops: float
    activation_bytes: float
    setup_seconds: float
    update_seconds: float
    evaluation_seconds: float
    memory_bytes: float


@dataclass(frozen=True)
class Calibration:
    """The cells that were measured on one kind of machine with one set of settings; ``date`` is the last one's.

    ``process_bytes`` is what a CPU worker's process holds beside the trial.
    """

    settings: dict[str, Any]
    hardware: str
    torch: str
    date: str
    process_bytes: int
    cells: tuple[Measured, ...]

    @cached_property
    def speed(self) -> Speed:
        """The speed of cells that were not measured: least squares of relative errors; medians beside the updates."""
        updates = [cell.update_seconds for cell in self.cells]
        block, per_flop = _relative([(cell.blocks, cell.update_flops) for cell in self.cells], updates)
        evaluations = [cell.evaluation_seconds - per_flop * cell.evaluation_flops for cell in self.cells]
        return Speed(
            step_seconds=0.0,
            flops_per_second=_inverse(per_flop),
            measured=len(self.cells),
            block_seconds=block,
            evaluation_seconds=statistics.median(max(0.0, beyond) for beyond in evaluations),
            setup_seconds=statistics.median(cell.setup_seconds for cell in self.cells),
        )

    @cached_property
    def memory(self) -> Memory:
        """The memory of cells that were not measured, found likewise."""
        rows = [(1.0, cell.activation_bytes) for cell in self.cells]
        states = [float(STATE_BYTES * cell.parameters) for cell in self.cells]
        return Memory(*_relative(rows, [cell.memory_bytes for cell in self.cells], states))

    @cached_property
    def error(self) -> float:
        """The largest relative error of the fit among the seconds that its own cells took an update."""
        speed = self.speed
        fitted = [cell.blocks * speed.block_seconds + cell.update_flops / speed.flops_per_second for cell in self.cells]
        return max(abs(said / cell.update_seconds - 1) for said, cell in zip(fitted, self.cells, strict=True))

    def cell(self, trial: Trial) -> Measured | None:
        """Return the measurements of this very size, if there are any."""
        return self._by_size.get(size_of(trial))

    @cached_property
    def _by_size(self) -> dict[str, Measured]:
        return {cell.size: cell for cell in self.cells}

    def seconds(self, trial: Trial) -> float:
        """Return the predicted seconds of a trial: from its own size's measurements, else from the fit."""
        cell = self.cell(trial)
        if cell is None:
            return seconds(trial, self.speed)
        return (
            cell.setup_seconds
            + trial.steps * cell.update_seconds
            + _evaluations(trial) * cell.evaluation_seconds
        )  # fmt: skip

    def memory_bytes(self, trial: Trial) -> float:
        """Return the predicted peak memory of a trial, likewise."""
        cell = self.cell(trial)
        if cell is not None:
            return cell.memory_bytes
        return memory_bytes(trial, self.memory, self.settings["device"], self.settings.get("micro_batch"))


def whole_budgets(ledger: Ledger, trials: list[Trial], device: str) -> Iterator[tuple[Trial, float]]:
    """Yield each of the finished trials that went through its whole budget at one go on a device, and its seconds."""
    for trial, result in zip(trials, ledger.results(trial.key for trial in trials), strict=True):
        machine = result.machine
        alike = machine.get("device", device) == device and not machine.get("resumed_at")
        if alike and result.curve.ended == "budget":
            yield trial, machine["seconds"]


class Costs:
    """What trials will cost, from the best that is known.

    In this order: what finished trials of the very size took; the calibration, times the ratio in which finished trials
    took longer than it said; a fit to finished trials; an assumption.
    """

    def __init__(self, device: str, calibration: Calibration | None = None) -> None:
        self.device, self.calibration = device, calibration
        self._finished: dict[tuple[str, int], list[tuple[Trial, float]]] = {}
        self._speed: Speed | None = None
        self._slowness: float | None = None

    def learn(self, trial: Trial, taken: float) -> None:
        """Take note of the seconds that a trial's whole budget took."""
        self._finished.setdefault((size_of(trial), trial.steps), []).append((trial, taken))
        self._speed = self._slowness = None

    @property
    def finished(self) -> int:
        """How many finished trials it knows."""
        return sum(map(len, self._finished.values()))

    @property
    def known(self) -> bool:
        """Whether predictions stand on measurements."""
        return self.calibration is not None or self.finished >= 2

    @property
    def source(self) -> str:
        """Where predictions come from, in words."""
        parts = [f"{self.finished} finished trials"] if self.finished >= 2 else []
        if self.calibration is not None:
            one = self.calibration
            parts.append(f"a calibration of {len(one.cells)} cells on {one.hardware}, {one.date}")
        return " and ".join(parts) or f"an assumed {self.device}"

    def seconds(self, trial: Trial) -> float:
        """Return the predicted seconds of a trial on one worker."""
        if self._finished:
            same = self._finished.get((size_of(trial), trial.steps))
            if same:
                return statistics.median(taken for _, taken in same)
        if self.calibration is not None:
            return self.calibration.seconds(trial) * self._slower()
        if self._speed is None:
            self._speed = fit((pair for pairs in self._finished.values() for pair in pairs), self.device)
        return seconds(trial, self._speed)

    def memory_bytes(self, trial: Trial) -> float:
        """Return the predicted peak memory of training a trial."""
        if self.calibration is not None:
            return self.calibration.memory_bytes(trial)
        return memory_bytes(trial, ASSUMED_MEMORY, self.device)

    def _slower(self) -> float:
        """Return how many times longer finished trials took than the calibration says, as the median of sizes."""
        assert self.calibration is not None
        if self._slowness is None:
            ratios = [
                statistics.median(taken for _, taken in pairs) / self.calibration.seconds(pairs[0][0])
                for pairs in self._finished.values()
            ]
            self._slowness = statistics.median(ratios) if ratios else 1.0
        return self._slowness
