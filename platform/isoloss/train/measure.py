"""What a trial costs on this machine: a few of its updates, timed in a process of their own; peak memory, too.

``python -m isoloss.train.measure`` reads trial, settings and seconds as JSON and prints what ``measure`` returns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from isoloss.config.budgets import Steps
from isoloss.config.heads import Linear
from isoloss.config.parts import AdamW, Decoder, Evaluation
from isoloss.config.tasks import SpamLang
from isoloss.study import Trial
from isoloss.train.loop import CHECK_STEPS, Training
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

CLOCKS = {"wall": time.monotonic, "cpu": time.process_time}
"""On a machine that others use, the CPU's seconds tell more."""

ENDLESS = 1_000_000
"""Updates of a trial that is measured: it does not come to its end."""

BLOCK_SECONDS, FEWEST_BLOCKS, MOST_BLOCKS = 0.2, 3, 40
"""Updates are timed in blocks of about so long, since a GPU works behind the program that drives it."""

TINY = Trial(
    task=SpamLang(vocab_size=8, sequence_length=4),
    model=Decoder(width=8, depth=1, attention_heads=1),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-3),
    budget=Steps(ENDLESS, batch_size=2),
    evaluation=Evaluation(sequences=2, points=4),
)
"""Trained first: what a process pays once (modules, threads, CUDA's context) is in no trial's cost."""


def measure(
    trial: Trial, settings: Settings, seconds: float, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Return what a trial costs one worker, timing its updates for about so many ``seconds``.

    ``update_seconds`` and ``evaluation_seconds`` are medians, the latter with the probes; ``setup_seconds`` is what
    a trial takes beside them. ``memory_bytes`` is the peak of the device's memory (CUDA) or the growth of the
    process's (CPU), ``process_bytes`` what a CPU process holds before.
    """
    warm_up(settings)
    process_bytes = reset_peak(settings.device)
    started = clock()
    timed = _Timed(trial, settings, clock)
    timed.evaluation()
    first = timed.updates(1)
    setup = clock() - started
    blocks = _updates(timed, max(1, min(CHECK_STEPS, int(BLOCK_SECONDS / first))), seconds)
    update = statistics.median(blocks)
    evaluations = [timed.evaluation(update) for _ in range(FEWEST_BLOCKS)]
    peak = peak_bytes(settings.device)
    timed.training.close()
    evaluation = max(0.0, statistics.median(evaluations))
    return {
        "setup_seconds": max(0.0, setup - update - evaluation),
        "update_seconds": update,
        "evaluation_seconds": evaluation,
        "memory_bytes": peak - process_bytes,
        "process_bytes": process_bytes,
        "hardware": torch.cuda.get_device_name() if settings.device == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def warm_up(settings: Settings) -> None:
    """Train something tiny, so that this process has paid what it pays once."""
    tiny = _Timed(TINY, settings, time.monotonic)
    tiny.evaluation()
    tiny.updates(2)
    tiny.training.close()


class _Timed:
    def __init__(self, trial: Trial, settings: Settings, clock: Callable[[], float]) -> None:
        self.clock = clock
        fields = {name: getattr(trial, name) for name in Trial.model_fields}
        endless = Trial(**{**fields, "budget": Steps(ENDLESS, batch_size=trial.batch_size)})
        self.training = Training(endless, settings, Workers())
        self.training.evaluate_after = set()

    def updates(self, count: int) -> float:
        """Return the seconds of an update."""
        started = self.clock()
        for _ in range(count):
            self.training.update()
            self.training.finite()
        return (self._now() - started) / count

    def evaluation(self, update: float = 0.0) -> float:
        """Return the seconds of an evaluation, and of what it adds to the update before it."""
        started = self.clock()
        if self.training.step:
            self.training.evaluate_after = {self.training.step + 1}
            self.training.update()
        self.training.evaluate()
        self.training.evaluate_after = set()
        return self._now() - started - update

    def _now(self) -> float:
        if self.training.device.type == "cuda":
            torch.cuda.synchronize()
        return self.clock()


def _updates(timed: _Timed, size: int, seconds: float = 0.0) -> list[float]:
    """Return the seconds of an update, block by block."""
    blocks: list[float] = []
    until = time.monotonic() + seconds
    while len(blocks) < FEWEST_BLOCKS or (len(blocks) < MOST_BLOCKS and time.monotonic() < until):
        blocks.append(timed.updates(size))
    return blocks


def reset_peak(device: str) -> int:
    """Forget the highest memory so far and return the present one, in bytes: 0 on CUDA, which counts tensors only."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return 0
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes(device)


def peak_bytes(device: str) -> int:
    """Return the highest memory since ``reset_peak``: of CUDA's tensors, or of this process."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    # Not getrusage's ru_maxrss: a process inherits that of the one that started it.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Measure the trial that stands on the standard input."""
    asked = json.load(sys.stdin)
    trial, settings = Trial.model_validate_json(asked["trial"]), Settings.model_validate_json(asked["settings"])
    if settings.device == "cpu":
        torch.set_num_threads(settings.threads)
    else:
        torch.use_deterministic_algorithms(True)
    print(json.dumps(measure(trial, settings, asked["seconds"], CLOCKS[asked["clock"]])))


if __name__ == "__main__":
    main()
