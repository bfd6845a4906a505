"""The CPU time that a ledger takes to list and to read what it holds, and the power with which that grows."""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.overhead.scale import fill, verdict
from benchmarks.overhead.trivial import study

from isoloss.report.status import status_of
from isoloss.run.book import Book
from isoloss.run.ledger import Ledger
from isoloss.search.plan import plan

TRIALS = (100, 1_000, 10_000)
MOST_POWER = 1.1
"""The bound of "not worse than linearly", with room for the noise of a measurement."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def main(options: argparse.Namespace) -> None:
    print("| trials | finished(), CPU-s | claims(), CPU-s | the driver's book, CPU-s | isoloss status, CPU-s |")
    print("|---|---|---|---|---|")
    rows = []
    for trials in TRIALS:
        rows.append(measured(trials))
        print(f"| {trials:,} | " + " | ".join(f"{seconds:.4f}" for seconds in rows[-1]) + " |", flush=True)
    powers = [math.log(last / before, TRIALS[-1] / TRIALS[-2]) for before, last in zip(*rows[-2:], strict=True)]
    told = " | ".join(f"{power:.2f} {verdict(power, MOST_POWER)}" for power in powers)
    print(f"| power of its growth from {TRIALS[-2]:,} on (bound {MOST_POWER}) | {told} |")


def measured(trials: int) -> list[float]:
    """Return the CPU seconds of each for a ledger of so many finished trials."""
    with tempfile.TemporaryDirectory() as folder:
        ledger, asked = Ledger(folder), study(trials)
        ledger.open(asked, {})
        fill(ledger, asked, trials)
        return [
            fastest(ledger.finished),
            fastest(ledger.claims),
            fastest(lambda: Book(asked, plan(asked), ledger)),
            fastest(lambda: status_of(asked, ledger)),
        ]


def fastest(call: Callable[[], Any], times: int = 3) -> float:
    found = []
    for _ in range(times):
        started = time.process_time()
        call()
        found.append(time.process_time() - started)
    return min(found)
