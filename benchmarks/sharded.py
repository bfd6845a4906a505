"""What a worker's memory comes to, with whole models and with models that are shared out.

``python benchmarks/sharded.py`` prints the highest resident memory of any worker, less what a process with torch has,
in bytes for each of the model's parameters: until the model is built, and until it has been trained and measured.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from isoloss import AdamW, Decoder, Evaluation, LowRank, SpamLang, Steps
from isoloss.study import Trial
from isoloss.train.loop import Training
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers


def trial(vocab_size: int, width: int, depth: int) -> Trial:
    """Few tokens, so that next to nothing but the model itself takes memory."""
    return Trial(
        task=SpamLang(vocab_size=vocab_size, sequence_length=4),
        model=Decoder(width=width, depth=depth, attention_heads=4),
        head=LowRank(rank=width // 2),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(8, batch_size=4),
        evaluation=Evaluation(sequences=4),
    )


LAYOUTS = (
    (1, False, "float32"),
    (2, False, "float32"),
    (2, True, "float32"),
    (2, True, "bfloat16"),
    (4, True, "float32"),
    (4, True, "bfloat16"),
)
TINY, LARGE = trial(64, 16, 1), trial(4096, 256, 8)


def peak() -> int:
    """Return the highest resident memory since it was reset, in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def worker(rank: int, count: int, settings: Settings, folder: str) -> None:
    """Write the bytes a parameter until the model is built, and until the end."""
    torch.set_num_threads(1)
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    run(TINY, settings, Workers(rank, count))
    peaks = run(LARGE, settings, Workers(rank, count))
    Path(folder, f"{rank}.txt").write_text(" ".join(str(size / LARGE.parameters) for size in peaks))
    if count > 1:
        dist.barrier()
        dist.destroy_process_group()


def run(trial: Trial, settings: Settings, workers: Workers) -> list[int]:
    """Return the peaks until the model is built, and until it has been trained and measured; in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = peak()
    training = Training(trial, settings, workers)
    built = peak()
    for _ in range(2):
        training.update()
    training.evaluate()
    training.close()
    return [built - before, peak() - before]


def main() -> None:
    """Print one line a layout."""
    # glibc would keep most of what is freed, in pieces that few later tensors fit into.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    print(f"{LARGE.parameters / 1e6:.1f} M parameters; bytes a parameter of the worker that has most\n")
    print("| workers | models | built | trained and measured |\n|---|---|---|---|")
    for count, shard, dtype in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(shard=shard, dtype=dtype)  # type: ignore[arg-type]
            torch.multiprocessing.spawn(worker, (count, settings, folder), nprocs=count)
            found = [[*map(float, path.read_text().split())] for path in Path(folder).glob("*.txt")]
        built, trained = (max(column) for column in zip(*found, strict=True))
        kind = "shared out" if shard else "whole"
        print(f"| {count} | {kind}, {dtype} | {built:.1f} | {trained:.1f} |", flush=True)


if __name__ == "__main__":
    main()
