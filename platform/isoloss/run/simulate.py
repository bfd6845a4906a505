"""Simulated studies: the driver's loop on a virtual clock, with a table or a function in training's place."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from isoloss.errors import UsageError
from isoloss.outcome import Outcome
from isoloss.result import SERIES, Result
from isoloss.run.book import Book, Order, Summary
from isoloss.run.cost import ASSUMED, Speed, seconds
from isoloss.run.mailbox import MOST_DELIVERIES
from isoloss.run.sources import Replay, Source


@dataclass(frozen=True)
class Simulation:
    """How a study is simulated: trials at a time, the probability that a machine fails during one delivery of a trial,
    and the speed of the cost model. Raises UsageError for a probability or number of slots that is none."""

    slots: int = 8
    failures: float = 0.0
    speed: Speed = ASSUMED["cpu"]

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise UsageError(f"slots must be 1 or more, not {self.slots}")
        if not 0 <= self.failures <= 1:
            raise UsageError(f"failures must be a probability from 0 to 1, not {self.failures:g}")


@dataclass(frozen=True)
class Simulated(Summary):
    """What a simulated session left: a session's summary, and the virtual seconds until its last trial ended.

    ``utilisation`` is the share of the slots' virtual time in which they worked, None when nothing was left to do.
    ``farthest`` is the largest distance of a replay.
    """

    outcomes: dict[str, int]
    virtual_seconds: float
    utilisation: float | None
    farthest: float


def simulate(
    book: Book, source: Source, settings: Simulation, tick: Callable[[Book], None] = lambda book: None
) -> Simulated:
    """Take a study through the source until nothing is left, or until an interrupt (SIGINT).

    The caller holds the ledger (``Ledger.driver``). ``tick`` is called whenever a trial ends. Raises what the source
    raises.
    """
    free = list(range(settings.slots)) if book.done < book.plan.total else []
    ends: list[tuple[float, int, float, Result | None]] = []  # (when, slot, how long it worked, what is left)
    clock = worked = farthest = 0.0
    try:
        while True:
            while free and not book.exhausted:
                order = book.next(f"slot {free[0]}")
                if order is None:
                    break
                replay = source(order.cell, order.trial)
                taken, result = _deliver(order, replay, source.name, settings)
                farthest = max(farthest, replay.distance)
                heapq.heappush(ends, (clock + taken, heapq.heappop(free), taken, result))
            if not ends:
                break
            clock, number, taken, result = heapq.heappop(ends)
            worked += taken
            heapq.heappush(free, number)
            slot = f"slot {number}"
            if result is None:
                book.ended(slot, "lost", f"given up after {MOST_DELIVERIES} deliveries: simulated machine failures")
            else:
                book.progress(slot, list(_points(result)))
                book.ledger.finish(result)
                book.ended(slot, None, "")
            tick(book)
    except KeyboardInterrupt:
        pass
    summary = book.settle()
    outcomes = {str(outcome): book.outcomes[outcome] for outcome in Outcome}
    utilisation = worked / (clock * settings.slots) if clock else None
    return Simulated(
        **vars(summary), outcomes=outcomes, virtual_seconds=clock, utilisation=utilisation, farthest=farthest
    )


def _deliver(order: Order, replay: Replay, name: str, settings: Simulation) -> tuple[float, Result | None]:
    """Return the virtual seconds that a trial keeps its slot, and its result, or None when every delivery failed.

    A delivery that fails does so at a uniformly drawn point, and the next one starts anew.
    """
    trial, curve = order.trial, replay.curve
    taken = replay.seconds
    if taken is None:
        taken = seconds(trial, settings.speed) * max(curve.step[-1], 1) / trial.steps
    spent = 0.0
    for delivery in range(MOST_DELIVERIES):
        # By key and delivery alone, so that neither order nor interruptions change which trials fail.
        seed = int.from_bytes(hashlib.sha256(f"{trial.key}/{delivery}".encode()).digest()[:8], "big")
        chance, share = np.random.default_rng(seed).random(2)
        if chance >= settings.failures:
            series: dict[str, tuple[float | None, ...]] = dict.fromkeys(SERIES, (None,) * len(curve.step))
            machine = {"simulated": name, "seconds": taken}
            return spent + taken, Result(trial.key, trial.canonical, curve, series, machine)
        spent += float(share) * taken
    return spent, None


def _points(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the points of a curve as a slot reports them."""
    curve = result.curve
    for step, loss, error in zip(curve.step, curve.loss, curve.standard_error, strict=True):
        yield {"step": step, "loss": loss, "standard_error": error, **dict.fromkeys(SERIES)}
