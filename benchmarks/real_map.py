"""A real map of trainability, cell by cell: what samplers of its boundary are measured against.

Trains every cell of a dense grid of learning rate and vocabulary size to the end of its budget, on one core and without
Ray (about half an hour), and writes one row a trial into ``data/spamlang_map.parquet``, with the study's JSON in the
schema's metadata under ``study``. Trials run in a shuffled order, so that what a partial file holds is already a map; a
run that was ended continues from there. Everything but ``seconds`` depends on the study alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, Log, SpamLang, Steps, Study, Verdict
from isoloss.run.cost import flops
from isoloss.study import Trial
from isoloss.train.loop import train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

TABLE = Path(__file__).parent / "data" / "spamlang_map.parquet"
SMALLEST, LARGEST, SIZES = 16, 700, 24

study = Study(
    name="spamlang-real-map",
    question="At which learning rates does a small model learn SpamLang, as the vocabulary grows?",
    task=SpamLang(vocab_size=SMALLEST, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=3e-2),
    budget=Steps(150, batch_size=32),
    axes={
        "task.vocab_size": Choice(
            *(round(SMALLEST * (LARGEST / SMALLEST) ** (i / (SIZES - 1))) for i in range(SIZES)),
        ),
        "optimizer.learning_rate": Log(low=7e-4, high=7.0, points=32),
    },
    replicates=3,
    evaluation=Evaluation(sequences=256, points=12),
    verdict=Verdict(converged_below=0.1),
    map=("optimizer.learning_rate", "task.vocab_size"),
)

SCHEMA = pa.schema(
    {
        "task.vocab_size": pa.int32(),
        "optimizer.learning_rate": pa.float64(),
        "replicate": pa.int8(),
        "outcome": pa.string(),
        "ended": pa.string(),
        "final_excess": pa.float64(),
        "capped_excess": pa.float64(),
        "initial_excess": pa.float64(),
        "steps": pa.int32(),
        "seconds": pa.float32(),
        "flops": pa.float64(),
    },
    metadata={"study": study.to_json()},
)
"""``steps`` is the step of the last point of the curve; ``flops`` is the trial's, times the share of steps done."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--partial", type=Path, help="where finished trials are appended (beside the table)")
    options = parser.parse_args()
    table: Path = options.table
    partial: Path = options.partial or table.with_suffix(".partial.jsonl")
    table.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    trials = list(study.trials())
    rows = finished(partial)
    left = [(cell, trial) for cell, trial in trials if trial.key not in rows]
    random.Random(0).shuffle(left)
    began = time.monotonic()
    with partial.open("a") as file:
        for count, (cell, trial) in enumerate(left, start=1):
            rows[trial.key] = row(cell, trial)
            file.write(json.dumps({"key": trial.key, **rows[trial.key]}) + "\n")
            file.flush()
            show(len(trials) - len(left) + count, len(trials), (time.monotonic() - began) / count * (len(left) - count))
    columns = pa.Table.from_pylist([rows[trial.key] for _, trial in trials], SCHEMA)
    pq.write_table(columns, table, compression="zstd")
    print(f"{table}: {len(columns)} trials, {table.stat().st_size / 1000:.0f} kB")
    partial.unlink()


def row(cell: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """Train one trial and return its row of the table."""
    result = train(trial, Settings(), Workers(0, 1), checkpoint=None, save=lambda data: None, report=lambda point: None)
    curve = result.curve
    return {
        **cell,
        "replicate": trial.replicate,
        "outcome": str(study.verdict.judge(curve)),
        "ended": curve.ended,
        "final_excess": curve.final_excess,
        "capped_excess": curve.capped_excess,
        "initial_excess": curve.initial_loss - curve.floor,
        "steps": curve.step[-1],
        "seconds": result.machine["seconds"],
        "flops": flops(trial) * curve.step[-1] / trial.steps,
    }


def finished(partial: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of the partial file by the trial's key, and cut off a last line that was not written whole."""
    if not partial.exists():
        return {}
    whole, end, _ = partial.read_text().rpartition("\n")
    partial.write_text(whole + end)
    rows = [json.loads(line) for line in whole.splitlines()]
    return {row.pop("key"): row for row in rows}


def show(done: int, total: int, seconds_left: float) -> None:
    """Say how far it is: in one line on a terminal, else now and then."""
    terminal = sys.stdout.isatty()
    if terminal or done % 50 == 0 or done == total:
        text = f"{done} of {total} trials, {seconds_left / 60:.1f} min left"
        print(f"\r{text} " if terminal else text, end="" if terminal and done < total else "\n", flush=True)


if __name__ == "__main__":
    main()
