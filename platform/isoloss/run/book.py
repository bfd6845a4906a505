"""The driver's book: which trials are finished, running and still to run in this session, as the ledger says."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from isoloss.outcome import Outcome
from isoloss.run.ledger import Claim, Ledger
from isoloss.run.members import members
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
        claims = ledger.claims()
        self.claims = len(claims)
        done = ledger.finished()
        for claim, cell, trial in members(study, claims):
            self.plan.claimed(cell, trial)
            if trial.key in done:
                self._finished(trial)
            else:
                self.resumed.append(Order(claim, cell, trial))
        self.done_before = self.done
        self.exhausted = False  # whether the plan has said that nothing more is to come

    @property
    def done(self) -> int:
        """Finished trials, those of earlier sessions included."""
        return self.outcomes.total()

    def next(self, slot: str) -> Order | None:
        """Return the next trial for Tune's trial ``slot``, claiming it in the ledger first."""
        if self.resumed:
            order = self.resumed.popleft()
        else:
            proposal = self.plan.next()
            if proposal is None:
                self.exhausted = True
                return None
            cell, trial = proposal
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
            self._finished(order.trial)
        elif state is not None:
            self.gave_up[key] = f"{state}: {reason}"
            self.ledger.give_up(key, state, reason)
            self.plan.gave_up(order.trial)
        else:  # interrupted
            return
        for watcher in self.watchers:
            watcher.finished(key)

    def settle(self) -> Summary:
        """End the session: take note of what was finished while it was being interrupted, and say what it left."""
        for slot, order in list(self.running.items()):
            self.ended(slot, None, "")
            if not self.ledger.is_finished(order.trial.key):
                self.resumed.append(order)
        left = bool(self.resumed) or not self.exhausted
        return Summary(self.done, self.plan.total, self.gave_up, interrupted=left and self.done < self.plan.total)

    def _finished(self, trial: Trial) -> None:
        result = self.ledger.result(trial.key)
        self.outcomes[self.study.verdict.judge(result.curve)] += 1
        self.plan.finished(trial, result)
