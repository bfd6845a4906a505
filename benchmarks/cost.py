"""Predicted against actual cost: a study is calibrated as by ``isoloss plan --calibrate``, then its cells are trained.

Each size of a study is trained once, without Ray, in a process of its own, and printed: predicted and actual seconds,
predicted and actual peak memory. ``sizes`` is a study of models of 0.2 to 5 million parameters. ``--most`` leaves
sizes to the fit. On a machine that others use, ``--clock cpu`` counts the CPU's seconds on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, SpamLang, Steps, Study
from isoloss.report.plan import sizes_of
from isoloss.run.calibrate import calibrate, chosen
from isoloss.run.cluster import WORKER_ENVIRONMENT
from isoloss.run.cost import size_of
from isoloss.study import Trial
from isoloss.study_file import load_study
from isoloss.train.settings import Settings

SIZES = Study(
    name="sizes",
    question="What do models of different sizes cost?",
    task=SpamLang(vocab_size=512, sequence_length=17),
    model=Decoder(width=64, depth=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-3),
    budget=Steps(40, batch_size=16),
    axes={
        "model": Choice(*(Decoder(width=width, depth=depth) for width in (64, 256) for depth in (2, 4))),
        "task.vocab_size": Choice(512, 4096),
    },
    evaluation=Evaluation(sequences=128, points=8),
)
SETTINGS = Settings(checkpoint_seconds=1e6)
"""Without checkpoints, whose memory no prediction holds: a busy machine would take some."""


def actual(trial: Trial, clock: str) -> tuple[float, int]:
    """Return the seconds and the peak bytes that training a whole trial took, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--train"],
        input=json.dumps({"trial": trial.model_dump_json(), "clock": clock}),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **WORKER_ENVIRONMENT, "OMP_NUM_THREADS": "1"},
    )
    seconds, memory = json.loads(done.stdout.splitlines()[-1])
    return seconds, memory


def train_here() -> None:
    """Train the trial on the standard input, as ``actual`` asks."""
    import torch

    from isoloss.train.loop import train
    from isoloss.train.measure import CLOCKS, peak_bytes, reset_peak, warm_up

    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    warm_up(SETTINGS)
    before, clock = reset_peak("cpu"), CLOCKS[asked["clock"]]
    started = clock()
    train(Trial.model_validate_json(asked["trial"]), SETTINGS)
    print(json.dumps([clock() - started, peak_bytes("cpu") - before]))


def compare(study: Study, seconds: float, clock: str, most: int | None) -> None:
    """Print predicted and actual cost of one trial of each size of a study, of which at most so many are calibrated."""
    sizes = {size_of(trial): trial for trial, _ in sizes_of(study)}
    with tempfile.TemporaryDirectory() as folder:
        wanted = chosen([(trial, 1) for trial in sizes.values()])[:most]
        made = calibrate([(trial, 1) for trial in wanted], SETTINGS, seconds, Path(folder), clock=clock)
    measured = {cell.size for cell in made.cells}
    print(f"{study.name}: {len(measured)} of {len(sizes)} cells calibrated; the fit is within {made.error:.0%} of them")
    print(f"{'seconds':>17}{'ratio':>8}{'MB':>13}{'ratio':>8}  cell")
    rows = []
    for size, trial in sizes.items():
        taken, memory = actual(trial, clock)
        predicted, peak = made.seconds(trial), made.memory_bytes(trial)
        rows.append((predicted, taken, peak / memory))
        print(
            f"{predicted:8.2f} {taken:8.2f}{predicted / taken:8.2f}"
            f"{peak / 1e6:7.1f}{memory / 1e6:6.1f}{peak / memory:8.2f}"
            f"  {'' if size in measured else 'not calibrated: '}{_name(trial)}",
            flush=True,
        )
    ratios = [one / other for one, other, _ in rows]
    total = sum(one for one, _, _ in rows) / sum(other for _, other, _ in rows)
    print(
        f"predicted / actual: all seconds {total:.2f}, of cells {min(ratios):.2f} to {max(ratios):.2f}; "
        f"memory {min(row[2] for row in rows):.2f} to {max(row[2] for row in rows):.2f}\n"
    )


def _name(trial: Trial) -> str:
    model = f"width {trial.model.width}, depth {trial.model.depth}, vocabulary {trial.task.vocab_size}"
    return f"{model}, {trial.head.label}, batch {trial.batch_size}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", default=["studies/spamlang_rank.py", "sizes"])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long calibrating may take")
    parser.add_argument("--most", type=int, help="most sizes to calibrate")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train_here()
        return
    print(f"{os.cpu_count()} CPUs, one thread; seconds of the {'CPU' if options.clock == 'cpu' else 'clock'}")
    for where in options.studies:
        compare(SIZES if where == "sizes" else load_study(where), options.seconds, options.clock, options.most)


if __name__ == "__main__":
    main()
