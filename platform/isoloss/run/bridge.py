"""The bridge by which Ray Tune gets its trials: what to run next is asked of the book, which stands on the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from isoloss.run.book import Book
from isoloss.run.mailbox import PAUSED


class Bridge(Searcher):
    """Turns claims into Tune's suggestions, as many at a time as there is ``room`` for, until ``stopping``.

    It has no metric: a report without one would end Tune's experiment.
    """

    def __init__(self, book: Book, room: Callable[[], int], stopping: Callable[[], bool]) -> None:
        super().__init__()
        self.book, self.room, self.stopping = book, room, stopping

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.stopping():
            return str(Searcher.FINISHED)
        if len(self.book.running) >= self.room():
            return None  # Tune asks again
        order = self.book.next(trial_id)
        if order is None:
            return str(Searcher.FINISHED)
        return {"key": order.trial.key, "trial": order.trial.model_dump_json()}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if not error:  # of errors the driver's callback knows the reason
            state = (result or {}).get("state")
            self.book.ended(trial_id, None if state == PAUSED else state, (result or {}).get("reason", ""))

    # Tune pickles and saves its searcher to restore experiments; ours are never restored: the ledger holds it all.

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass
