"""Trials per hour in slots, and in the documented pattern of Ray Tune and Ray Train, on the same study and machine.

The documented pattern starts a new ``TorchTrainer.fit()`` in every Tune trial ("Hyperparameter tuning with Ray Tune" of
Ray Train's user guide), here with Ray's defaults but for the CPU that Tune reserves for the trial's own function, of
which the default takes the workers' room. Its reduced variant has what isoloss sets for its own Ray, and reuses actors.
Each variant runs in a Ray of its own; its row is kept in ``.bench``, so that ``--only`` can measure one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
from benchmarks.overhead.trivial import Ends, study
from ray import tune
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback

from isoloss.run import cluster
from isoloss.run.book import Book
from isoloss.run.driver import drive
from isoloss.run.ledger import Ledger
from isoloss.run.settings import SLOT_CPUS, RunSettings
from isoloss.search.plan import plan
from isoloss.study import Trial
from isoloss.train.loop import train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

BOUND = 20.0
ROWS = Path(".bench/overhead.json")
VARIANTS = {
    "slots": "slots",
    "documented": "the documented pattern, Ray's defaults",
    "reduced": "the documented pattern, reduced",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=VARIANTS, help="measure one variant, and keep the others' last rows")
    parser.add_argument("--seconds", type=float, default=1.0, help="training of a trial on a quiet core; 0: 3 updates")
    parser.add_argument("--workers", type=int, default=1, help="workers that train a trial together")
    parser.add_argument("--slots", type=int, default=2, help="trials at a time, in every variant")
    parser.add_argument("--trials", type=int, default=60, help="trials in slots")
    parser.add_argument("--documented", type=int, default=8, help="trials in each variant of the documented pattern")
    parser.add_argument("--steps", type=int, help="updates of a trial, instead of --seconds")


def main(options: argparse.Namespace) -> None:
    if options.only is None:
        steps = options.steps or steps_of(options.seconds)
        for variant in VARIANTS:
            sizes = [f"--{name}={getattr(options, name)}" for name in ("workers", "slots", "trials", "documented")]
            command = [sys.executable, "-m", "benchmarks.overhead", "documented", f"--only={variant}"]
            subprocess.run([*command, f"--steps={steps}", *sizes], check=True, stdout=subprocess.DEVNULL)
    else:
        measure(options)
    show(json.loads(ROWS.read_text()))


def measure(options: argparse.Namespace) -> None:
    steps = options.steps or steps_of(options.seconds)
    if options.only == "slots":
        ends, trained = slot_ends(options, steps)
    else:
        ends, trained = documented_ends(options, steps, reduced=options.only == "reduced")
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    ROWS.parent.mkdir(exist_ok=True)
    first = sorted(ends)[options.slots - 1 :]  # those before waited for Ray and the slots to start
    each = (first[-1] - first[0]) / (len(first) - 1)
    rows[options.only] = {
        **{name: getattr(options, name) for name in ("workers", "slots")},
        **{"steps": steps, "trials": len(ends), "trials_per_hour": 3600 / each, "trained": statistics.fmean(trained)},
        "overhead": each * options.slots - statistics.fmean(trained),
    }
    ROWS.write_text(json.dumps(rows, indent=2))


def steps_of(seconds: float) -> int:
    """Return the updates that train for so long in this process, now."""
    if not seconds:
        return 3
    trial = next(iter(study(2, steps=300).trials()))[1]
    train(trial, Settings(), Workers(0, 1))
    return max(3, round(300 * seconds / train(trial, Settings(), Workers(0, 1)).machine["seconds"]))


def slot_ends(options: argparse.Namespace, steps: int) -> tuple[list[float], list[float]]:
    """Return when each trial in a slot ended, and for how long each was trained (s)."""
    settings, asked = RunSettings(workers_per_slot=options.workers, slots=options.slots), study(options.trials, steps)
    cluster.connect(None)
    with tempfile.TemporaryDirectory(prefix="isoloss-bench-") as folder:
        ledger, ends = Ledger(folder), Ends()
        with ledger.driver(asked, settings.train.arithmetic):
            drive(Book(asked, plan(asked), ledger, [ends]), settings)
        return [end.wall for end in ends.all], [ledger.result(end.key).machine["seconds"] for end in ends.all]


def documented_ends(options: argparse.Namespace, steps: int, reduced: bool) -> tuple[list[float], list[float]]:
    """The same of trials that each start a TorchTrainer."""
    if reduced:
        cluster.connect(None)
    else:
        ray.init(log_to_driver=False)
    folder = tempfile.mkdtemp(prefix="isoloss-bench-")
    trials = {trial.key: trial.model_dump_json() for _, trial in study(options.documented, steps).trials()}

    def train_fn_per_worker(config: dict[str, Any]) -> None:
        context = ray.train.get_context()
        workers = Workers(context.get_world_rank(), context.get_world_size())
        result = train(Trial.model_validate_json(trials[config["key"]]), Settings(), workers)
        ray.train.report({"loss": result.curve.final_loss})
        if workers.rank == 0:
            Path(folder, f"{config['key']}.trained").write_text(json.dumps(result.machine["seconds"]))

    def train_driver_fn(config: dict[str, Any]) -> None:
        TorchTrainer(
            train_fn_per_worker,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(
                num_workers=options.workers, resources_per_worker=RunSettings().worker_resources
            ),
            run_config=ray.train.RunConfig(
                name=f"train-{config['key']}", storage_path=folder, callbacks=[TuneReportCallback()]
            ),
        ).fit()
        Path(folder, f"{config['key']}.ended").write_text(json.dumps(time.monotonic()))

    tune.Tuner(
        tune.with_resources(train_driver_fn, {"CPU": SLOT_CPUS}),
        param_space={"key": tune.grid_search(list(trials))},
        tune_config=tune.TuneConfig(max_concurrent_trials=options.slots, reuse_actors=reduced),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    ends, trained = ([json.loads(path.read_text()) for path in Path(folder).glob(f"*.{what}")]
                     for what in ("ended", "trained"))  # fmt: skip
    return ends, trained


def show(rows: dict[str, dict[str, Any]]) -> None:
    print(f"{os.cpu_count()} CPUs, Ray {ray.__version__}\n")
    print("| variant | updates | workers | at a time | trials | s trained | s outside training | trials an hour |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {VARIANTS[name]} | {row['steps']} | {row['workers']} | {row['slots']} | {row['trials']} "
              f"| {row['trained']:.2f} | {row['overhead']:.2f} | {row['trials_per_hour']:.0f} |")  # fmt: skip
    slots = rows.get("slots")
    for name in VARIANTS:
        if slots is None or name == "slots" or name not in rows:
            continue
        ratio = slots["trials_per_hour"] / rows[name]["trials_per_hour"]
        outside = rows[name]["overhead"] / slots["overhead"]
        print(f"\nslots to {VARIANTS[name]}: {ratio:.1f}x the trials an hour (bound {BOUND:g}x: "
              f"{'pass' if ratio >= BOUND else 'FAIL'}), {outside:.0f}x less time outside training")  # fmt: skip
