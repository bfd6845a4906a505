"""What a trial costs outside its training as a study grows: seconds, the driver's CPU time and memory.

All is as in ``isoloss run``: Tune and its bridge, the book, MLflow on SQLite, the report; only the slots are not with
``--untrained``, which puts others in their place whose trials are done at once (one session can then run 10,000 trials
in minutes). ``--before N`` starts from a ledger, and an MLflow, that hold N finished trials already.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.overhead.trivial import End, Ends, peak_gb, study
from benchmarks.overhead.untrained import UntrainedSlot, result
from rich.console import Console

from isoloss import session
from isoloss.run import driver
from isoloss.run.book import Book, Summary, Watcher
from isoloss.run.ledger import Ledger
from isoloss.run.settings import RunSettings
from isoloss.run.state import State
from isoloss.search.plan import Plan
from isoloss.study import Study
from isoloss.track.publish import publish

SECONDS_A_TRIAL = {1_000: 0.3, 10_000: 0.5}
MOST_GB = 1.5
WINDOWS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=1_000, help="trials of the study")
    parser.add_argument("--before", type=int, default=0, help="of these, how many are finished when the driver starts")
    parser.add_argument("--state", help="a folder to keep; what it holds already is not run again")
    parser.add_argument("--untrained", action="store_true", help="put slots in place whose trials are done at once")
    parser.add_argument("--slots", type=int, default=1, help="trials at a time")


def main(options: argparse.Namespace) -> None:
    asked, settings, ends = study(options.trials), RunSettings(slots=options.slots), Ends()
    started, drive = time.monotonic(), driver.drive

    def watched(of: Study, plan: Plan, ledger: Ledger, watchers: list[Watcher]) -> Book:
        return Book(of, plan, ledger, [*watchers, ends])

    def driven(book: Book, *others: Any) -> Summary:
        summary = drive(book, *others)
        if len(ends.all) > WINDOWS:
            report(ends.all, book.ledger, options, started)
        return summary

    with ExitStack() as stack:
        folder = options.state or stack.enter_context(tempfile.TemporaryDirectory(prefix="isoloss-bench-"))
        state = State(Path(folder))
        ledger = state.ledger(asked.name)
        if options.before and not ledger.exists():
            ledger.open(asked, settings.train.arithmetic)
            fill(ledger, asked, options.before)
            publish(asked, ledger, state.tracking_uri)
            started = time.monotonic()
        stack.enter_context(mock.patch.object(session, "Book", watched))
        stack.enter_context(mock.patch.object(driver, "drive", driven))
        if options.untrained:
            stack.enter_context(mock.patch.object(driver, "Slot", UntrainedSlot))
        console = Console(file=stack.enter_context(open(os.devnull, "w")))
        session.run_session(asked, state, settings, None, console)
        whole = time.monotonic() - started
        trained = sum(ledger.result(end.key).machine["seconds"] for end in ends.all)
    print(f"\nthe whole session: {whole:.1f} s, peak memory of the driver {peak_gb():.2f} GB "
          f"(bound {MOST_GB}: {verdict(peak_gb(), MOST_GB)})")  # fmt: skip
    if ends.all:
        each, bound = (options.slots * whole - trained) / len(ends.all), bound_of(options)
        print(f"with its start, MLflow and report: {each:.3f} s a trial outside training "
              f"(bound {bound}: {verdict(each, bound)})")  # fmt: skip


def bound_of(options: argparse.Namespace) -> float:
    return SECONDS_A_TRIAL[1_000 if options.trials <= 1_000 else 10_000]


def fill(ledger: Ledger, asked: Study, trials: int) -> None:
    """Write claims and made-up results of a study's first trials."""
    for number, (cell, trial) in enumerate(itertools.islice(asked.trials(), trials)):
        ledger.claim(number, trial.key, cell, trial.replicate)
        ledger.finish(result(trial.key, trial.canonical))


def report(ends: list[End], ledger: Ledger, options: argparse.Namespace, started: float) -> None:
    """Print seconds of a slot outside training, by how many trials are finished, and the bars."""
    trained = {end.key: ledger.result(end.key).machine["seconds"] for end in ends}
    print(f"the first trial ended after {ends[0].wall - started:.1f} s; then, with {options.slots} slot(s):")
    print("| finished | s a trial outside training | s from end to end: median, 99 % | driver's CPU s | its peak, GB |")
    print("|---|---|---|---|---|")
    before = ledger.claims()[-1].number + 1 - len(ends)
    size = math.ceil((len(ends) - 1) / WINDOWS)
    for at in range(0, len(ends) - 1, size):
        window = ends[at : at + size + 1]
        gaps = [end.wall - last.wall for last, end in itertools.pairwise(window)]
        outside = options.slots * statistics.fmean(gaps) - statistics.fmean(trained[end.key] for end in window[1:])
        spread = f"{statistics.median(gaps):.3f}, {sorted(gaps)[int(0.99 * len(gaps))]:.3f}"
        cpu = (window[-1].cpu - window[0].cpu) / len(gaps)
        print(f"| {before + at + len(window):,} | {outside:.3f} | {spread} | {cpu:.3f} | {window[-1].peak_gb:.2f} |")
    mean, gap = statistics.fmean(trained.values()), (ends[-1].wall - ends[0].wall) / (len(ends) - 1)
    outside, bound = options.slots * gap - mean, bound_of(options)
    print(f"\n| {options.trials:,} trials, {len(ends):,} of them in this session | bound | measured |\n|---|---|---|")
    print(f"| s a trial outside training, after the first | {bound} | {outside:.3f} {verdict(outside, bound)} |")
    print(f"| peak memory of the driver by then, GB | {MOST_GB} | {ends[-1].peak_gb:.3f} "
          f"{verdict(ends[-1].peak_gb, MOST_GB)} |", flush=True)  # fmt: skip


def verdict(value: float, bound: float) -> str:
    return "pass" if value <= bound else "FAIL"
