"""The trial that costs next to nothing to train, so that what is left is overhead; and when each of them ended."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass
from typing import Any

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, Log, SpamLang, Steps, Study
from isoloss.run.ledger import Claim

MOST_CELLS, RATES = 1000, 25


def study(trials: int, steps: int = 3) -> Study:
    """Return a study of so many trials, each of a few updates of a tiny model: a map of up to 1,000 cells."""
    replicates = math.ceil(trials / MOST_CELLS)
    if trials % replicates:
        raise SystemExit(f"--trials must be at most {MOST_CELLS} or a multiple of {replicates}, not {trials}")
    cells = trials // replicates
    rates = RATES if cells % RATES == 0 else cells
    sizes = {"task.vocab_size": Choice(*range(16, 16 + cells // rates))} if cells > rates else {}
    return Study(
        name="trivial",
        question="What does a trial cost outside its training?",
        task=SpamLang(vocab_size=16, sequence_length=4),
        model=Decoder(width=8, depth=1, attention_heads=1),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(steps, batch_size=2),
        axes={"optimizer.learning_rate": Log(1e-4, 1e-2, points=rates), **sizes},
        replicates=replicates,
        evaluation=Evaluation(sequences=2, points=4),
    )


@dataclass(frozen=True)
class End:
    """The end of a trial: when (s), the CPU time (s) and the peak memory (GB) of the driver until then."""

    key: str
    wall: float
    cpu: float
    peak_gb: float


class Ends:
    """A watcher that takes down when each trial ended."""

    def __init__(self) -> None:
        self.all: list[End] = []

    def running(self, claim: Claim) -> None:
        pass

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        pass

    def finished(self, key: str) -> None:
        self.all.append(End(key, time.monotonic(), time.process_time(), peak_gb()))


def peak_gb() -> float:
    """Return the most memory (GB) that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
