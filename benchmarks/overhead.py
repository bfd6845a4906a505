"""What a trial costs outside its training: in a slot, and in the documented pattern of Ray Tune and Ray Train.

The documented pattern starts a new ``TorchTrainer.fit()`` in every Tune trial; a slot keeps its workers. Both train the
same trivial trial (one update of a tiny model), one at a time, in one run on one Ray. Prints seconds a trial outside
training (wall time between two trials' ends, less the later one's training), and their ratio.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray import tune
from ray.train.torch import TorchTrainer

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, SpamLang, Steps, Study
from isoloss.run import cluster
from isoloss.run.book import Book
from isoloss.run.driver import drive
from isoloss.run.ledger import Claim, Ledger
from isoloss.run.settings import RunSettings
from isoloss.search.plan import plan
from isoloss.study import Trial
from isoloss.train.loop import train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers


def study(trials: int) -> Study:
    return Study(
        name="trivial",
        question="What does a trial cost outside its training?",
        task=SpamLang(vocab_size=16, sequence_length=4),
        model=Decoder(width=8, depth=1, attention_heads=1),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(3, batch_size=2),
        axes={"optimizer.learning_rate": Choice(*(1e-3 + 1e-5 * i for i in range(trials)))},
        evaluation=Evaluation(sequences=2, points=4),
    )


class Ends:
    """When each trial ended."""

    def __init__(self) -> None:
        self.times: list[tuple[str, float]] = []

    def running(self, claim: Claim) -> None:
        pass

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        pass

    def finished(self, key: str) -> None:
        self.times.append((key, time.monotonic()))


def slot_overheads(workers: int, trials: int) -> list[float]:
    """Seconds outside training of every trial but the first, which waits for the slot to start."""
    with tempfile.TemporaryDirectory() as folder:
        ledger, ends, settings = Ledger(folder), Ends(), RunSettings(workers_per_slot=workers, slots=1)
        with ledger.driver(study(trials), settings.train.arithmetic):
            drive(Book(study(trials), plan(study(trials)), ledger, [ends]), settings)
        return [
            end - before - ledger.result(key).machine["seconds"]
            for (_, before), (key, end) in itertools.pairwise(ends.times)
        ]


def documented_overheads(workers: int, trials: int) -> list[float]:
    """The same for a fresh TorchTrainer in every Tune trial."""
    folder = tempfile.mkdtemp(prefix="isoloss-bench-")
    proposals = {trial.key: trial.model_dump_json() for _, trial in study(trials).trials()}

    def loop(config: dict[str, Any]) -> None:
        context = ray.train.get_context()
        result = train(
            Trial.model_validate_json(config["trial"]),
            Settings(),
            Workers(context.get_world_rank(), context.get_world_size()),
        )
        if context.get_world_rank() == 0:
            Path(folder, f"{result.key}.seconds").write_text(json.dumps(result.machine["seconds"]))

    def trial_function(config: dict[str, Any]) -> None:
        TorchTrainer(
            loop,
            train_loop_config={"trial": proposals[config["key"]]},
            scaling_config=ray.train.ScalingConfig(
                num_workers=workers, resources_per_worker=RunSettings().worker_resources
            ),
            run_config=ray.train.RunConfig(name=config["key"], storage_path=folder),
        ).fit()
        tune.report(
            {"seconds": json.loads(Path(folder, f"{config['key']}.seconds").read_text()), "ended": time.monotonic()}
        )

    grid = tune.Tuner(
        tune.with_resources(trial_function, {"CPU": cluster.SLOT_CPUS}),
        param_space={"key": tune.grid_search(list(proposals))},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    ends = sorted((result.metrics["ended"], result.metrics["seconds"]) for result in grid)
    return [end - before - seconds for (before, _), (end, seconds) in itertools.pairwise(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40, help="trials in a slot")
    parser.add_argument("--documented", type=int, default=4, help="trials in the documented pattern")
    options = parser.parse_args()
    cluster.connect(None)
    print(
        f"{os.cpu_count()} CPUs, Ray {ray.__version__}; seconds a trial outside training, median (minimum to maximum)"
    )
    for workers in (1, 2):
        slot = slot_overheads(workers, options.trials)
        documented = documented_overheads(workers, options.documented)
        ratio = statistics.median(documented) / statistics.median(slot)
        print(
            f"{workers} worker(s) a slot: slot {_spread(slot)}, documented pattern {_spread(documented)}, "
            f"ratio {ratio:.0f}x"
        )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
