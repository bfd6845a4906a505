"""A study's progress as metrics: Ray's agents serve them to Prometheus, with Ray's own, as ``ray_isoloss_...``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from isoloss.outcome import Outcome
from isoloss.run.book import Book
from isoloss.run.ledger import Claim

STUDY = ("study",)
SECONDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0, 100_000.0)
"""Upper edges of the buckets of ``isoloss_trial_seconds``."""

AGAIN_SECONDS = 5.0
"""How often gauges are set: Ray forgets those that were not since its last report, which it makes every 10 s."""


class Metrics:
    """Watches a book and its slots, and sets what Prometheus reads; ``kinds`` is ``ray.util.metrics`` or alike.

    Every metric has the tag ``study``. Counters count from the start of the session; Prometheus knows of that. Make it
    once Ray is connected: what is recorded before is lost.
    """

    def __init__(
        self,
        book: Book,
        kinds: Any = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._book, self._clock, self._now = book, clock, now
        self._began: dict[str, float] = {}  # by key, as are the next two
        self._step: dict[str, int] = {}
        self._deliveries: dict[str, int] = {}
        make = _Maker(kinds or _ray(), book.study.name)
        self._planned = make.gauge("trials_planned", "Trials of the study, as far as its search has planned them.")
        self._finished = make.gauge("trials_finished", "Trials with a result, by outcome, of all sessions.", "outcome")
        self._running = make.gauge("trials_running", "Trials that slots hold.")
        self._given_up = make.gauge("trials_given_up", "Trials that this session gave up as lost or out of memory.")
        self._updates = make.counter("updates", "Updates of the optimizer that were heard of, repeated ones included.")
        self._time = make.counter("trial_time_seconds", "Time from handing trials out to their results, together.")
        self._seconds = make.histogram("trial_seconds", "Time from handing a trial out to its result.", SECONDS)
        self._deaths = make.counter("slot_deaths", "Slots that died while they held a trial.")
        self._repeated = make.counter("deliveries_repeated", "Times a trial was handed to workers again.")
        self._news = make.gauge("last_news_timestamp_seconds", "When a trial last began, went on or ended.")
        self._news_at = self._now()
        self._count()

    def tick(self, book: Book) -> None:
        """Set the gauges again if it is time; called several times a second."""
        if self._clock() - self._counted >= AGAIN_SECONDS:
            self._count()

    def running(self, claim: Claim) -> None:
        self._began[claim.key], self._news_at = self._clock(), self._now()
        self._count()

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        # A trial that goes on from a checkpoint is first heard of in its midst; one that is delivered again goes back.
        before, step = self._step.get(key, rows[0]["step"]), rows[-1]["step"]
        self._step[key] = step
        if step > before:
            self._updates.inc(step - before)
        self._news_at = self._now()

    def finished(self, key: str) -> None:
        began = self._began.pop(key, None)
        if began is not None and key not in self._book.gave_up:
            spent = max(self._clock() - began, 1e-3)  # a counter must grow
            self._time.inc(spent)
            self._seconds.observe(spent)  # of whose sum Ray keeps only an estimate
        self._step.pop(key, None)
        self._deliveries.pop(key, None)
        self._news_at = self._now()
        self._count()

    def held(self, key: str, slot: str, node: str, deliveries: int) -> None:
        """Take note that a slot's workers were handed a trial so many times."""
        more = deliveries - max(self._deliveries.get(key, 1), 1)
        if more > 0:
            self._repeated.inc(more)
        self._deliveries[key] = deliveries

    def slot_died(self, key: str) -> None:
        """Take note that the slot of a trial died."""
        self._deliveries.pop(key, None)  # the next slot counts from one
        self._deaths.inc()

    def _count(self) -> None:
        book, self._counted = self._book, self._clock()
        self._planned.set(book.plan.total)
        for outcome in Outcome:
            self._finished.set(book.outcomes[outcome], {"outcome": str(outcome)})
        self._running.set(len(book.running))
        self._given_up.set(len(book.gave_up))
        self._news.set(self._news_at)


def _ray() -> Any:
    from ray.util import metrics  # not before: it takes a second to load

    return metrics


class _Maker:
    """Makes metrics that all have the same prefix and the study's tag."""

    def __init__(self, kinds: Any, study: str) -> None:
        self.kinds, self.tags = kinds, {"study": study}

    def gauge(self, name: str, description: str, *tags: str) -> Any:
        return self._tagged(self.kinds.Gauge(f"isoloss_{name}", description, tag_keys=STUDY + tags))

    def counter(self, name: str, description: str) -> Any:
        return self._tagged(self.kinds.Counter(f"isoloss_{name}", description, tag_keys=STUDY))

    def histogram(self, name: str, description: str, boundaries: tuple[float, ...]) -> Any:
        return self._tagged(self.kinds.Histogram(f"isoloss_{name}", description, list(boundaries), tag_keys=STUDY))

    def _tagged(self, metric: Any) -> Any:
        return metric.set_default_tags(self.tags)
