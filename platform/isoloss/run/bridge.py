"""The bridge by which Ray Tune gets its trials: what to run next is asked of the book, which stands on the ledger."""

from __future__ import annotations

from typing import Any

from ray.tune.search import Searcher

from isoloss.run.book import Book


class Bridge(Searcher):
    """Turns claims into Tune's suggestions. It has no metric: a report without one would end Tune's experiment."""

    def __init__(self, book: Book) -> None:
        super().__init__()
        self.book = book

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        order = self.book.next(trial_id)
        if order is None:
            return str(Searcher.FINISHED)
        return {"key": order.trial.key, "trial": order.trial.model_dump_json()}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if not error:  # of errors the driver's callback knows the reason
            self.book.ended(trial_id, (result or {}).get("state"), (result or {}).get("reason", ""))

    # Tune pickles and saves its searcher to restore experiments; ours are never restored: the ledger holds it all.

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass
