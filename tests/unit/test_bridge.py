"""The bridge between Tune and the book: as many trials at a time as there is room for, none once a run is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_contract import ARITHMETIC, small_result, small_study
from ray.tune.search import Searcher

from isoloss.run.book import Book
from isoloss.run.bridge import Bridge
from isoloss.run.ledger import Ledger
from isoloss.search.plan import plan


class Run:
    """A small study behind its bridge, with room for so many slots."""

    def __init__(self, ledger: Ledger, room: int) -> None:
        study = small_study()
        ledger.open(study, ARITHMETIC)
        self.ledger, self.room, self.stopped = ledger, room, False
        self.book = Book(study, plan(study), ledger)
        self.bridge = Bridge(self.book, lambda: self.room, lambda: self.stopped)

    def fill(self) -> list[str]:
        """Suggest until Tune is told to ask again later, or not at all; return the Tune trials that were started."""
        started = []
        while isinstance(self.bridge.suggest(name := f"tune-{len(self.book.running)}-{self.book.claims}"), dict):
            started.append(name)
        return started


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Ledger(tmp_path), room=2)


def test_the_room_bounds_how_many_trials_run_and_may_change(run: Run) -> None:
    first, second = run.fill()
    assert run.bridge.suggest("more") is None
    run.room = 3
    assert len(run.fill()) == 1
    run.room = 1
    run.ledger.finish(small_result(run.book.running[first].trial.key, 0.5))
    run.bridge.on_trial_complete(first, {"state": "finished", "reason": ""})
    assert run.fill() == [], "two still run, and there is room for one"
    assert second in run.book.running


def test_a_stopped_run_starts_nothing_and_what_it_paused_is_left_to_do(run: Run) -> None:
    started = run.fill()
    run.stopped = True
    assert run.bridge.suggest("more") == Searcher.FINISHED
    for name in started:
        run.bridge.on_trial_complete(name, {"state": "paused", "reason": ""})
    summary = run.book.settle()
    assert summary.interrupted
    assert summary.gave_up == {}
    assert summary.done == 0


def test_the_last_trial_that_is_paused_is_an_interruption_too(run: Run) -> None:
    run.room = 1000
    started = run.fill()
    assert run.bridge.suggest("more") == Searcher.FINISHED, "all are handed out"
    for name in started[1:]:
        run.ledger.finish(small_result(run.book.running[name].trial.key, 0.5))
        run.bridge.on_trial_complete(name, {"state": "finished", "reason": ""})
    run.bridge.on_trial_complete(started[0], {"state": "paused", "reason": ""})
    summary = run.book.settle()
    assert summary.interrupted
    assert summary.done == summary.total - 1
