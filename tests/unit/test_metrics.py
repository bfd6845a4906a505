"""Metrics for Prometheus: what a study's events make of each value, recorded by stand-ins for Ray's metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ledger_contract import ARITHMETIC, small_result, small_study

from isoloss.run.book import Book
from isoloss.run.ledger import Ledger
from isoloss.run.metrics import Metrics
from isoloss.search.plan import plan

ROOT = Path(__file__).parents[2]


class Registry:
    """Has the three kinds of ``ray.util.metrics``, by their signatures, and keeps what they hold."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.values: dict[tuple[str, str], float] = {}
        self.observed: dict[str, list[float]] = {}
        self.studies: set[str] = set()

    def __getattr__(self, kind: str) -> Any:
        assert kind in ("Gauge", "Counter", "Histogram")
        return lambda name, description, *boundaries, tag_keys: _Metric(self, kind, name, tag_keys)


class _Metric:
    def __init__(self, registry: Registry, kind: str, name: str, keys: tuple[str, ...]) -> None:
        self.registry, self.kind, self.name, self.keys = registry, kind, name, keys
        registry.made.add(name)

    def set_default_tags(self, tags: dict[str, str]) -> _Metric:
        self.defaults = tags
        return self

    def set(self, value: float, tags: Mapping[str, str] = {}) -> None:
        assert self.kind == "Gauge"
        self.registry.values[self._key(tags)] = value

    def inc(self, value: float = 1.0) -> None:
        assert self.kind == "Counter"
        assert value > 0  # Ray raises
        key = self._key({})
        self.registry.values[key] = self.registry.values.get(key, 0) + value

    def observe(self, value: float) -> None:
        assert self.kind == "Histogram"
        self._key({})
        self.registry.observed.setdefault(self.name, []).append(value)

    def _key(self, tags: Mapping[str, str]) -> tuple[str, str]:
        given = {**self.defaults, **tags}
        assert set(given) == set(self.keys)  # Ray raises for one that lacks
        self.registry.studies.add(given.pop("study"))
        return self.name, "".join(given.values())


class Watched:
    """A book of four trials, watched, under clocks that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.registry, self.time = Ledger(folder), Registry(), 100.0
        self.ledger.open(small_study(), ARITHMETIC)
        self.book = Book(small_study(), plan(small_study()), self.ledger)
        self.metrics = Metrics(self.book, self.registry, lambda: self.time, lambda: 1e9 + self.time)
        self.book.watchers.append(self.metrics)

    def start(self, slot: str) -> str:
        order = self.book.next(slot)
        assert order is not None
        return order.trial.key

    def __getitem__(self, name: str) -> float:
        name, _, tag = name.partition(" ")
        return self.registry.values.get((f"isoloss_{name}", tag), 0)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_trials_are_counted_by_what_became_of_them(watched: Watched) -> None:
    assert (watched["trials_planned"], watched["trials_running"]) == (4, 0)
    first, second, _ = (watched.start(slot) for slot in "abc")
    assert watched["trials_running"] == 3
    watched.time = 112.5
    watched.ledger.finish(small_result(first, loss=0.01))
    watched.book.ended("a", "finished", "")
    assert [watched["trials_running"], watched["trials_finished converged"]] == [2, 1]
    watched.book.ended("b", "lost", "its machine went away")
    assert [watched["trials_running"], watched["trials_given_up"]] == [1, 1]
    assert watched["trials_finished diverged"] == 0
    assert watched.registry.observed == {"isoloss_trial_seconds": [12.5]}  # of the lost one nothing
    assert watched["trial_time_seconds"] == 12.5
    assert watched.registry.studies == {small_study().name}
    assert second in watched.book.gave_up


def test_results_of_earlier_sessions_count_from_the_start(watched: Watched, tmp_path: Path) -> None:
    watched.ledger.finish(small_result(watched.start("a"), loss=0.01))
    again = Watched(tmp_path)
    assert again["trials_finished converged"] == 1


def test_updates_are_those_between_two_points_and_count_again_when_they_are_repeated(watched: Watched) -> None:
    watched.start("a")
    watched.book.progress("a", [{"step": 0}, {"step": 40}])
    watched.book.progress("a", [{"step": 100}])
    assert watched["updates"] == 100
    watched.book.progress("a", [{"step": 60}])  # its workers died, and went on from a checkpoint at 50
    assert watched["updates"] == 100
    watched.book.progress("a", [{"step": 100}])
    assert watched["updates"] == 140
    watched.start("b")
    watched.book.progress("b", [{"step": 500}])  # a trial of an earlier session: what it did then is not this one's
    assert watched["updates"] == 140


def test_gauges_are_set_again_while_nothing_happens_and_say_since_when(watched: Watched) -> None:
    watched.start("a")
    watched.time = 103.0
    watched.book.progress("a", [{"step": 0}])
    for watched.time, left in ((103.5, 0), (109.0, 9), (113.9, 0), (114.0, 9)):
        watched.registry.values.clear()
        watched.metrics.tick(watched.book)
        assert len(watched.registry.values) == left  # five outcomes and four others
    assert watched["last_news_timestamp_seconds"] == 1e9 + 103
    assert watched["trials_running"] == 1


def test_deaths_and_deliveries_count_what_was_repeated(watched: Watched) -> None:
    key = watched.start("a")
    for deliveries in (0, 1, 1, 3):
        watched.metrics.held(key, "slot", "node", deliveries)
    assert watched["deliveries_repeated"] == 2
    watched.metrics.slot_died(key)
    watched.metrics.held(key, "other", "node", 1)
    assert (watched["slot_deaths"], watched["deliveries_repeated"]) == (1, 2)


def test_dashboard_and_documentation_name_every_metric_and_no_other(watched: Watched) -> None:
    made = watched.registry.made
    assert len(made) < 15
    for name in ("infra/prometheus/README.md", "infra/prometheus/dashboard.json"):
        told = set(re.findall(r"ray_(isoloss_[a-z_]+)", (ROOT / name).read_text()))
        assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in told} == made, name
    alerts = re.findall(r"ray_(isoloss_[a-z_]+)", (ROOT / "infra/prometheus/alerts.yml").read_text())
    assert {name.removesuffix("_total") for name in alerts} < made
