"""Strikes a run with one fault after another, each some seconds after its trials move again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.run import Run

PATIENCE_S = 240.0

DYING_S = 2.0
"""How long processes may go on whose slot, node or driver was killed."""


class Stuck(Exception):
    """No trial went on after a fault."""


@dataclass
class Struck:
    """A fault that struck: when, seconds after the run began; what it hit; seconds until the trials moved again."""

    at_s: float
    kind: str
    target: str
    moving_s: float

    finished_s: float = float("nan")
    """Seconds until the next trial finished."""
    repeated: int = 0
    """Updates made again by trials that went on between this fault and the next."""
    continued: int = 0
    """Executions that took up a trial between this fault and the next."""


def strike_all(
    run: Run, kinds: list[str], draw: random.Random, pause: tuple[float, float], moving: int
) -> Iterator[Struck]:
    """Strike with every fault of ``kinds``, as long as trials are left, and wait until the run is done.

    Yields each fault once the trials move again; raises Stuck when they do not.

    A fault strikes a random time within ``pause`` seconds after ``moving`` trials at once have gone on since the last,
    and without a pause where trials would otherwise run out before faults do.
    """
    _until_moving(run, moving, "the start")
    for number, kind in enumerate(kinds):
        ahead = len(run.watch.ended) * len(kinds) > run.trials * number
        run.wait(draw.uniform(*pause) * (not ahead))
        if _left(run) == 0:
            break
        began = time.monotonic()
        target = FAULTS[kind](run, draw)
        _until_moving(run, moving, f"{kind}, {target}")
        taken = time.monotonic() - began
        print(
            f"{number + 1} of {len(kinds)} faults, {len(run.watch.ended)} of {run.trials} trials: {kind}, {target}; "
            f"moving again after {taken:.0f} s",
            flush=True,
        )
        yield Struck(began - run.began, kind, target, taken)
    _until_done(run)


def _left(run: Run) -> int:
    return run.trials - len(run.watch.ended)


def _until_moving(run: Run, moving: int, after: str) -> None:
    run.wait(DYING_S)
    before = {one.name: one.step for one in run.executions()}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        moved = {one.key for one in run.executions() if one.step > before.get(one.name, one.resumed_at)}
        if run.finished or len(moved) >= min(moving, _left(run)):
            run.failing_since = float("inf")
            return
        if time.monotonic() > deadline:
            raise Stuck(f"after {after}, {len(moved)} of {moving} trials went on within {PATIENCE_S:.0f} s")
        run.wait(0.2)


def _until_done(run: Run) -> None:
    deadline, done = time.monotonic() + PATIENCE_S, -1
    while not run.finished:
        if len(run.watch.ended) > done:
            deadline, done = time.monotonic() + PATIENCE_S, len(run.watch.ended)
        if time.monotonic() > deadline:
            raise Stuck(f"no trial finished within {PATIENCE_S:.0f} s; {done} of {run.trials} had")
        run.wait(0.2)
