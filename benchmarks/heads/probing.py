"""What the survival probe costs beside the training that it watches."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.heads.measure import Bar, Times, table

from isoloss import AdamW, Decoder, Evaluation, Linear, LowRank, Probes, SpamLang, Steps
from isoloss.config.heads import Head
from isoloss.study import Trial
from isoloss.train.loop import Training
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

VOCAB_SIZE, WIDTH, TOKENS, EVERY = 8192, 64, 2048, 10
LIMIT_PERCENT = 2.0
HEADS: tuple[Head, ...] = (Linear(), LowRank(rank=16))


def measure(rounds: int) -> list[Bar]:
    """Print one table and return the bars."""
    rows, bars = [], []
    for head in HEADS:
        training = Training(trial(head, EVERY * (rounds + 1)), Settings(), Workers())
        times = Times({"updates": updates(training), "probe": probe(training)}, rounds)
        training.close()
        percent = 100 * times.ratio("probe", "updates")
        milliseconds = (f"{1000 * times.median(way):,.0f}" for way in times.seconds)
        rows.append((f"`{type(head).__name__}`", *milliseconds, f"{percent:.2f}"))
        bars.append(
            Bar(f"% of training, survival every {EVERY}th update, {type(head).__name__}", percent, LIMIT_PERCENT)
        )
        print(".", end="", flush=True)
    print(f"\n\nThe survival probe, M = {WIDTH}, V = {VOCAB_SIZE:,}, {TOKENS:,} tokens an update: CPU time\n")
    print(table(("head", f"{EVERY} updates, ms", "one probe, ms", "%"), rows))
    return bars


def trial(head: Head, steps: int) -> Trial:
    task = SpamLang(vocab_size=VOCAB_SIZE, sequence_length=64)
    return Trial(
        task=task,
        model=Decoder(width=WIDTH, depth=2),
        head=head,
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(steps, batch_size=TOKENS // task.positions),
        evaluation=Evaluation(sequences=64, points=4, probes=Probes(spectra=False, stability=False)),
    )


def updates(training: Training) -> Callable[[], None]:
    def run() -> None:
        for _ in range(EVERY):
            training.update()

    return run


def probe(training: Training) -> Callable[[], object]:
    prober = training.prober
    if prober is None:
        raise ValueError("the trial has no probes")
    return lambda: prober.measure(training.bare_model)
