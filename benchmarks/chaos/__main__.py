"""A study on a local cluster of three nodes under faults: ``make chaos``, or ``python -m benchmarks.chaos --help``.

Faults, in an order and at times drawn from a seed, each some seconds after the trials go on again: kill -9 of a worker,
of a slot's Tune actor, of the driver (started again at once), of a node (another joins later) and of MLflow's server
(started again later); an object store that does not answer for 30 s; a full disk; a wall clock, the driver's, that
jumps by hours. Afterwards: no finished trial ran twice, none is missing, MLflow has one run a trial with the
undisturbed points, the report's tables have the bytes of plain torch processes without Ray, and no process, placement
group or lock is left behind. Prints what struck and what was repeated. Exit code 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chaos import check
from benchmarks.chaos.faults import FAULTS, drawn
from benchmarks.chaos.reference import steps_that_take, train_all
from benchmarks.chaos.run import SLOTS, Run
from benchmarks.chaos.strike import Struck, Stuck, strike_all
from benchmarks.chaos.study import study_text
from benchmarks.chaos.table import faults_table, totals

TRIAL_S = 12.0
"""So long that 60 trials on two slots outlast 40 faults."""


def main() -> None:
    options = _options()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4))
    draw = random.Random(seed)
    kinds = drawn(options.kinds, options.faults, draw)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left running
    folder = Path(tempfile.mkdtemp(prefix="chaos"))
    steps = options.steps or _usual_steps(folder)
    print(f"seed {seed}: {options.trials} trials of {steps} updates, {len(kinds)} faults", flush=True)
    broken, struck = chaos(folder, options.trials, steps, kinds, draw, tuple(options.pause), options.moving)
    print("\nbroken:" if broken else "\nevery promise held", *broken, sep="\n")
    if len(struck) < len(kinds) and not broken:
        print(f"only {len(struck)} of {len(kinds)} faults struck: the trials were over; ask for more --steps")
    if broken or len(struck) < len(kinds):
        raise SystemExit(f"what was left is in {folder}; seed {seed}")
    shutil.rmtree(folder)


def chaos(
    folder: Path,
    trials: int,
    steps: int,
    kinds: list[str],
    draw: random.Random,
    pause: tuple[float, float] = (2.0, 8.0),
    moving: int = SLOTS,
) -> tuple[list[str], list[Struck]]:
    """Let faults loose on a study in ``folder``, print what happened, and return broken promises and what struck."""
    run = Run(folder, trials, steps, kinds)
    struck: list[Struck] = []
    with run.stack:
        study, keys = check.trial_keys(run.study)
        try:
            for fault in strike_all(run, kinds, draw, pause, moving):
                struck.append(fault)
        except Stuck as error:
            print(faults_table(struck, run.executions(), run))
            return [str(error), *check.whole(run, keys)], struck
        wall = time.monotonic() - run.began
        broken = check.published(run, study)
        began = time.monotonic()
        reference = train_all(run.study, folder / "reference")
        undisturbed = time.monotonic() - began
        broken += check.same_runs(run, study, reference) + check.same_numbers(run, study, reference)
        broken += check.nothing_left(run) + check.whole(run, keys) + check.no_process_left(run)
        done = run.executions()
    print(faults_table(struck, done, run))
    print(totals(struck, done, run, wall, undisturbed))
    return broken, struck


def _usual_steps(folder: Path) -> int:
    probe = folder / "probe.py"
    probe.write_text(study_text(4, 400))
    return steps_that_take(TRIAL_S, probe)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=60, help="trials of the study (default: 60)")
    parser.add_argument("--faults", type=int, default=40, help="faults in the run (default: 40)")
    parser.add_argument("--steps", type=int, help="updates of a trial (default: as many as take 12 s)")
    parser.add_argument("--seed", type=int, help="seed of the faults (default: a new one, printed)")
    parser.add_argument("--kinds", nargs="+", choices=list(FAULTS), default=list(FAULTS), help="faults (default: all)")
    parser.add_argument(
        "--pause", nargs=2, type=float, default=(2.0, 8.0), help="seconds before a fault (default: 2 8)"
    )
    parser.add_argument("--moving", type=int, default=SLOTS, help="trials that must go on first (default: all slots)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
