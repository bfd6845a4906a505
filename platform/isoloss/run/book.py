"""The driver's book: which trials are finished, running and still to run in this session, as the ledger says."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from isoloss.outcome import Outcome
from isoloss.result import Result
from isoloss.run.ledger import Claim, Ledger
from isoloss.run.members import members
from isoloss.search.boundary.course import Course
from isoloss.search.plan import Plan
from isoloss.study import Study, Trial


@dataclass(frozen=True)
class Order:
    """A claimed trial on its way to a slot."""

    claim: Claim
    cell: dict[str, Any]
    trial: Trial


@dataclass(frozen=True)
class Summary:
    """What a session left: trials finished, of how many, and those that were given up."""

    done: int
    total: int
    gave_up: dict[str, str]
    interrupted: bool
    stopped: str = field(default="", kw_only=True)
    """Which limit ended the session, in words."""


class Watcher(Protocol):
    """Hears of every trial that starts, goes on and ends; it must neither block nor raise."""

    def running(self, claim: Claim) -> None: ...

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None: ...

    def finished(self, key: str) -> None: ...


class Book:
    """Hands out trials: first those that were claimed but not finished, then what the plan proposes."""

    def __init__(self, study: Study, plan: Plan, ledger: Ledger, watchers: Iterable[Watcher] = ()) -> None:
        self.study, self.plan, self.ledger, self.watchers = study, plan, ledger, list(watchers)
        self.running: dict[str, Order] = {}  # by Tune's trial id
        self.outcomes: Counter[Outcome] = Counter()
        self.gave_up: dict[str, str] = {}
        self.resumed: deque[Order] = deque()
        self._course: Course | None = None  # as last recorded
        claims = ledger.claims()
        self.claims = len(claims)
        done = ledger.finished()
        found = list(members(study, claims))
        results = ledger.results([claim.key for claim, _, _ in found if claim.key in done])
        for claim, cell, trial in found:
            self.plan.claimed(cell, trial)
            if trial.key in done:
                self._finished(trial, next(results))
            else:
                self.resumed.append(Order(claim, cell, trial))
        self.done_before = self.done
        self.allows: Callable[[Trial], bool] = lambda trial: True  # whether a limit leaves enough for a trial
        self.exhausted = False  # whether the plan has said that nothing more is to come

    @property
    def done(self) -> int:
        """Finished trials, those of earlier sessions included."""
        return self.outcomes.total()

    def next(self, slot: str) -> Order | None:
        """Return the next trial for Tune's trial ``slot``, claiming it in the ledger first."""
        if self.resumed:
            if not self.allows(self.resumed[0].trial):
                return None
            order = self.resumed.popleft()
        else:
            proposal = self.plan.next()
            self._record_course()
            if proposal is None:
                self.exhausted = True
                return None
            cell, trial = proposal
            if not self.allows(trial):
                return None
            claim = self.ledger.claim(self.claims, trial.key, cell, trial.replicate, self.plan.note)
            order = Order(claim, cell, trial)
            self.claims += 1
            self.plan.claimed(cell, trial)
        self.running[slot] = order
        for watcher in self.watchers:
            watcher.running(order.claim)
        return order

    def progress(self, slot: str, points: list[dict[str, Any]]) -> None:
        """Take new points of a running trial's curve."""
        if points and slot in self.running:
            for watcher in self.watchers:
                watcher.progress(self.running[slot].trial.key, points)

    def ended(self, slot: str, state: str | None, reason: str) -> None:
        """Take note that a slot is done with its trial; what became of it is what the ledger says."""
        order = self.running.pop(slot, None)
        if order is None:
            return
        key = order.trial.key
        if self.ledger.is_finished(key):
            self._finished(order.trial, self.ledger.result(key))
        elif state is not None:
            self.gave_up[key] = f"{state}: {reason}"
            self.ledger.give_up(key, state, reason)
            self.plan.gave_up(order.trial)
        else:  # interrupted
            self.resumed.append(order)
            return
        for watcher in self.watchers:
            watcher.finished(key)

    def settle(self) -> Summary:
        """End the session: take note of what was finished while it was being interrupted, and say what it left."""
        for slot in list(self.running):
            self.ended(slot, None, "")
        self._record_course()
        left = bool(self.resumed) or not self.exhausted
        return Summary(self.done, self.plan.total, self.gave_up, interrupted=left and self.done < self.plan.total)

    def _record_course(self) -> None:
        course, last = self.plan.course(), self._course
        if course is not None and (last is None or (course.reason, course.checks) != (last.reason, last.checks)):
            self.ledger.record_course(self.study, course)
            self._course = course

    def _finished(self, trial: Trial, result: Result) -> None:
        self.outcomes[self.study.verdict.judge(result.curve)] += 1
        self.plan.finished(trial, result)
