"""The table of what struck and what was repeated, and the totals below it."""

from __future__ import annotations

import itertools

from benchmarks.chaos.counts import Execution, repeats
from benchmarks.chaos.run import Run
from benchmarks.chaos.strike import Struck

HEADER = ("", "at s", "fault", "target", "moving s", "next result s", "taken up", "updates repeated")


def attribute(struck: list[Struck], done: list[Execution], run: Run) -> None:
    """Note with every fault what came of it: the next result, and what trials repeated until the next fault."""
    again = [(one.began_ns / 1e9 - run.began, one.updates) for one in repeats(done)]
    ends = sorted(end - run.began for end in run.watch.ended.values())
    for fault, until in zip(struck, [*(one.at_s for one in struck[1:]), float("inf")], strict=True):
        fault.finished_s = next((end - fault.at_s for end in ends if end > fault.at_s), float("nan"))
        updates = [count for at, count in again if fault.at_s <= at < until]
        fault.continued, fault.repeated = len(updates), sum(updates)


def faults_table(struck: list[Struck], done: list[Execution], run: Run) -> str:
    """Return the faults, one a row, and the drivers that ended by themselves."""
    attribute(struck, done, run)
    rows = [
        (
            str(number), f"{one.at_s:.0f}", one.kind, one.target, f"{one.moving_s:.1f}", f"{one.finished_s:.1f}",
            str(one.continued), str(one.repeated),
        )
        for number, one in enumerate(struck, 1)
    ]  # fmt: skip
    lines = [" | ".join(row) for row in (HEADER, *rows)]
    lines[1:1] = ["|".join("---" for _ in HEADER)]
    exits = []
    for (code, line), same in itertools.groupby(run.exits, lambda one: one[1:]):
        times = [at for at, *_ in same]
        exits.append(f"drivers that ended by themselves: {len(times)} from {times[0]:.0f} s on, with {code}: {line}")
    return "\n".join([*(f"| {line} |" for line in lines), *exits])


def totals(struck: list[Struck], done: list[Execution], run: Run, wall: float, undisturbed: float) -> str:
    """Return what the run came to in all."""
    made = sum(one.step - one.resumed_at for one in done)
    again = sum(one.updates for one in repeats(done))
    lost = len(done) - run.trials
    return (
        f"{run.trials} trials in {len(done)} executions, {lost} of which took up a trial again; {made:,} updates, "
        f"{again:,} of them repeated ({again / max(made, 1):.1%}); {wall:.0f} s from the start of the cluster to the "
        f"last trial, and {undisturbed:.0f} s in two plain processes, undisturbed"
    )
