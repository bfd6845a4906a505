"""Whether the loader of a text can starve a trainer: its tokens a second against those of a 10M-parameter model.

Prepares the sample corpus in a temporary folder, then reads batches as training does and trains on them, in turn, in
one process on one thread. Prints medians and the ratio; the bar is 20.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from isoloss import AdamW, Corpus, Decoder, Evaluation, Files, Ladder, Linear, Steps, Text, tasks
from isoloss.data.prepare import prepare
from isoloss.data.sample import write_sample
from isoloss.study import Trial
from isoloss.train.loop import Training
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

ROUNDS, UPDATES, BATCHES = 5, 2, 200


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sample(folder / "sample.parquet", most_bytes=4_000_000)
        source = Files(str(folder / "sample.parquet"))
        data = prepare(Corpus(name="sample", source=source, tokenizer=Ladder(8192), held_out_bytes=100_000),
                       folder / "sample")  # fmt: skip
        trial = Trial(
            task=Text(data=data, vocab_size=8192, sequence_length=256),
            model=Decoder(width=256, depth=8),
            head=Linear(),
            optimizer=AdamW(learning_rate=1e-4),
            budget=Steps(ROUNDS * UPDATES + 1, batch_size=8),
            evaluation=Evaluation(sequences=2, points=4),
        )
        training = Training(trial, Settings(data=name), Workers())
        loaded = tasks.load(trial, folder)
        training.update()  # the first one allocates
        of_batch = trial.batch_size * trial.task.positions
        reading, learning = [], []
        for turn in range(ROUNDS):
            begun = time.perf_counter()
            for step in range(BATCHES):
                loaded.train(turn * BATCHES + step)
            reading.append(BATCHES * of_batch / (time.perf_counter() - begun))
            begun = time.perf_counter()
            for _ in range(UPDATES):
                training.update()
            learning.append(UPDATES * of_batch / (time.perf_counter() - begun))
        training.close()
    loader, trainer = statistics.median(reading), statistics.median(learning)
    print(f"loader:  {loader:12,.0f} tokens/s (batches of {trial.batch_size} x {trial.task.positions})")
    print(f"trainer: {trainer:12,.0f} tokens/s ({trial.parameters / 1e6:.1f}M parameters, float32, one thread)")
    print(f"ratio:   {loader / trainer:12,.0f} (bar 20)")


if __name__ == "__main__":
    main()
