"""Limits that hold: the hours of a run's slots are counted, recorded ahead, and end it before they exceed a limit."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isoloss.errors import IsolossError, UsageError
from isoloss.run.book import Book
from isoloss.run.cost import Costs, hours_name, whole_budgets
from isoloss.run.ledger import Claim
from isoloss.run.settings import RunSettings
from isoloss.study import Trial

STOPPING_SECONDS = 30.0
"""How long slots may be held after they were told to stop: their trials save their state first."""

RECORD_SECONDS, LATE_SECONDS = 10.0, 5.0
"""How often the hours are recorded, and how late that may be: so much is recorded beforehand."""

IDLE_SECONDS = 10.0
"""How long a slot may be without a trial before it is known to be gone."""


class LimitError(IsolossError):
    """A limit on the cost of a study leaves nothing to spend; the message says how to go on."""

    exit_code = 1


@dataclass(frozen=True)
class Limit:
    """The most hours that a study's slots may hold devices, over all its sessions; ``price`` is that of one hour.

    ``option`` is the option of the command that sets it.
    """

    hours: float
    unit: str
    option: str
    price: float | None = None

    def stopped(self, spent: float, done: int, total: int) -> str:
        """Return in words that a study of which so many trials are done has come to this limit."""
        if self.price is None:
            what = f"{self.hours:.4g} {self.unit} ({spent:.3g} spent)"
        else:
            each = f"at {self.price:.2f} an hour"
            what = f"{self.hours * self.price:.2f} ({spent * self.price:.2f} spent, {each})"
        return (
            f"stopped at the limit of {what}; {done} of {total} trials have a result; raise {self.option} to go on"
        )  # fmt: skip


def limit_of(max_hours: float | None, max_cost: float | None, price: float | None, device: str) -> Limit | None:
    """Return the lower of the limits that are asked for, or None.

    Raises UsageError for a cost without the price of an hour, and for a price without a cost.
    """
    if max_cost is not None and price is None:
        raise UsageError("--max-cost needs --price, the price of an hour of a GPU, or on cpu of a slot")
    if price is not None and max_cost is None:
        raise UsageError("--price is that of --max-cost, which is missing; `isoloss plan --price` predicts a cost")
    if price is not None and price <= 0:
        raise UsageError(f"--price must be more than 0, not {price:g}")
    found = []
    if max_hours is not None:
        found.append(Limit(max_hours, hours_name(device), "--max-gpu-hours"))
    if max_cost is not None and price is not None:
        found.append(Limit(max_cost / price, hours_name(device), "--max-cost", price))
    return min(found, key=lambda limit: limit.hours, default=None)


class Spending:
    """Counts the hours in which the slots of one session hold devices, and ends it before they exceed a limit.

    Of a GPU run these are hours of GPUs; on the CPU an hour of a slot counts. A slot counts from the moment it is given
    its first trial, start-up and idle time included. It watches the book, which asks it whether a trial may start.
    """

    def __init__(
        self,
        book: Book,
        settings: RunSettings,
        limit: Limit | None,
        costs: Costs,
        clock: Callable[[], float] = time.monotonic,
        stop: Callable[[], object] = lambda: signal.raise_signal(signal.SIGINT),  # as Ctrl-C does
    ) -> None:
        self.book, self.limit, self._costs, self._clock, self._stop = book, limit, costs, clock, stop
        self._device = settings.train.device
        each = settings.gpus_per_worker * settings.workers_per_slot if self._device == "cuda" else 1.0
        self._slot_hours = each / 3600  # of a slot's second
        before = book.ledger.spent(self._device)
        self._before, self._reached_before = before.hours, before.reached
        self._session, self._hours = uuid.uuid4().hex[:12], 0.0
        self._held, self._held_at, self._counted_at, self._record_at = 0, clock(), clock(), clock()
        self._begun: dict[str, tuple[Trial, float]] = {}  # by key
        self._candidate: Trial | None = None
        self._stopping = False
        self.reached = False
        """Whether the limit has kept a trial from starting or going on."""

    @property
    def spent(self) -> float:
        """Hours so far, those of earlier sessions included."""
        return self._before + self._hours

    @property
    def message(self) -> str:
        """What the limit has come to, in words; empty when it was not reached."""
        if self.limit is None or not self.reached:
            return ""
        return self.limit.stopped(self.spent, self.book.done, self.book.plan.total)

    def check(self) -> None:
        """Raise LimitError when an earlier session came to this limit, or it leaves too little to start and stop."""
        if self.limit is None:
            return
        if self._reached_before >= self.limit.hours or self._left(slots=1) <= 0:
            self.reached = True
            raise LimitError(self.message)

    def allows(self, trial: Trial) -> bool:
        """Say whether what is left is enough for the running trials and this one, as far as predictions are known."""
        self._candidate = trial
        if self.limit is not None and not self.reached:
            self._count()
            slots = max(self._held, len(self.book.running) + 1)
            self.reached = self._needed(trial) >= self._left(slots)
        return not self.reached

    def tick(self, book: Book) -> None:
        """Count, record now and then, stop when what is left is needed for stopping; called several times a second."""
        self._count()
        if self._held and self._clock() >= self._record_at:
            self._record()
        if self.limit is not None and not self._stopping and self._held and self._left(self._held) <= 0:
            self.reached = self._stopping = True
            self._record(STOPPING_SECONDS)
            self._stop()

    def close(self) -> None:
        """Record what was really spent; called when no slot is held any more."""
        self._count()
        self._held = 0
        if self._hours or self.reached:
            self._record()

    # --- what the book tells

    def running(self, claim: Claim) -> None:
        held = self._held
        self._count()
        if self._candidate is not None and self._candidate.key == claim.key:
            self._begun[claim.key] = self._candidate, self._clock()
        if self._held > held:
            self._record()

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        pass

    def finished(self, key: str) -> None:
        trial, _ = self._begun.pop(key)
        if self.limit is not None and key not in self.book.gave_up:
            for one, taken in whole_budgets(self.book.ledger, [trial], self._device):
                self._costs.learn(one, taken)

    # --- counting

    def _needed(self, trial: Trial) -> float:
        """Return the hours in which the running trials and this one will be done: 0 while nothing is known of them."""
        if not self._costs.known:
            return 0.0
        now = self._clock()
        running = (self._begun[order.trial.key] for order in self.book.running.values())
        more = sum(max(0.0, self._costs.seconds(one) - (now - begun)) for one, begun in running)
        return (more + self._costs.seconds(trial)) * self._slot_hours

    def _left(self, slots: int) -> float:
        """Return the hours that are left beside what stopping so many slots may take."""
        assert self.limit is not None
        return self.limit.hours - self.spent - slots * (STOPPING_SECONDS + LATE_SECONDS) * self._slot_hours

    def _count(self) -> None:
        """Add the hours since the last count."""
        now = self._clock()
        self._hours += self._held * (now - self._counted_at) * self._slot_hours
        self._counted_at = now
        running = len(self.book.running)
        if running >= self._held or now - self._held_at > IDLE_SECONDS:
            self._held, self._held_at = running, now

    def _record(self, ahead: float = RECORD_SECONDS + LATE_SECONDS) -> None:
        """Write down the hours with those until the next writing, so that a killed driver has spent no more."""
        self._record_at = self._clock() + ahead - LATE_SECONDS
        hours = self._hours + self._held * ahead * self._slot_hours
        reached = self.limit.hours if self.limit is not None and self.reached else 0.0
        self.book.ledger.spend(self._session, self._device, hours, reached)
