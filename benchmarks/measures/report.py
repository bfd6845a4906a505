"""What a report costs: the seconds of writing one of 1,000 trials with 200 points each, and the size of its page.

    python -m benchmarks.measures.report

The trials are made up: power laws with a floor, noise between replicates, and divergence at high learning rates.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Literal

import numpy as np

from isoloss import AdamW, Choice, Curve, Decoder, Evaluation, Linear, Log, SpamLang, Steps, Study
from isoloss.analysis.measures import MEASURES
from isoloss.analysis.table import trials_table
from isoloss.report.write import write_report
from isoloss.result import SERIES, Result
from isoloss.run.ledger import Ledger
from isoloss.study import Trial

TRIALS, POINTS = 1000, 200
MOST_SECONDS, MOST_BYTES = 20.0, 8_000_000

STUDY = Study(
    name="report-cost",
    question="What does a report of 1,000 trials cost?",
    task=SpamLang(vocab_size=64, sequence_length=8),
    model=Decoder(width=32, depth=1),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-3),
    budget=Steps(20_000, batch_size=8),
    axes={
        "task.vocab_size": Choice(*(round(64 * 2 ** (i / 2)) for i in range(10))),
        "optimizer.learning_rate": Log(low=1e-4, high=1e-1, points=20),
    },
    replicates=5,
    evaluation=Evaluation(points=POINTS),
)


def result(trial: Trial) -> Result:
    """Return the made-up result of a trial, of ``POINTS`` points."""
    rng = np.random.default_rng(int(trial.key, 16))
    log_rate = math.log10(trial.optimizer.learning_rate)
    initial = math.log(trial.task.vocab_size)
    steps = np.unique(np.geomspace(1, trial.steps, POINTS).astype(int))
    steps = np.concatenate([[0], steps])
    final = 0.02 * 10 ** (2 * abs(log_rate + 2.2)) * math.exp(0.1 * rng.normal())
    loss = initial * (1 + steps / 20) ** (math.log(min(final, initial) / initial) / math.log(1 + trial.steps / 20))
    loss *= np.exp(0.01 * rng.normal(size=len(steps)))
    ended: Literal["budget", "above_initial"] = "budget"
    if log_rate > -1.3 and trial.task.vocab_size > 500:
        loss, ended = np.minimum(loss * np.geomspace(1, 50, len(steps)), 3 * initial), "above_initial"
    curve = Curve(tuple(steps.tolist()), tuple(loss.tolist()), (0.001,) * len(steps), 0.0, ended)
    series = {name: (None, *rng.random(len(steps) - 1).tolist()) for name in SERIES}
    machine = {"device": "cpu", "dtype": "float32", "workers": 1, "torch": "none", "hardware": "cpu", "seconds": 2.0}
    return Result(trial.key, trial.canonical, curve, series, machine)


def ledger(folder: Path) -> Ledger:
    """Return a ledger of the study in which every trial is finished."""
    made = Ledger(folder)
    made.open(STUDY, {"device": "cpu"})
    for number, (cell, trial) in enumerate(STUDY.trials()):
        made.claim(number, trial.key, cell, trial.replicate)
        made.finish(result(trial))
    return made


def seconds(began: float) -> float:
    """Return the CPU seconds of this process since ``began``: other processes may share the core."""
    return time.process_time() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = ledger(Path(folder, "ledger"))
        began, wall = time.process_time(), time.monotonic()
        written = write_report(STUDY, made, Path(folder, "report"))
        taken, waited = seconds(began), time.monotonic() - wall
        size = written.report_html.stat().st_size
        print(f"| a report of {TRIALS:,} trials with {POINTS} points each | measured | bar |")
        print("|---|---|---|")
        print(f"| CPU seconds ({waited:.0f} s on the clock) | {taken:.1f} | {MOST_SECONDS:.0f} |")
        print(f"| page, bytes | {size:,} | {MOST_BYTES:,} |")
        trials = trials_table(STUDY, made)
        print("\n| measure | rows | CPU seconds |\n|---|---|---|")
        for measure in MEASURES:
            began = time.process_time()
            rows = len(measure.table(STUDY, trials, made.result))
            print(f"| {measure.name} | {rows} | {seconds(began):.1f} |")


if __name__ == "__main__":
    main()
