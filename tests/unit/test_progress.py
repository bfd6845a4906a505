"""Progress on a terminal: what it shows of a book, and that redrawing it costs a driver of fast trials nothing."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from ledger_contract import ARITHMETIC, small_result, small_study
from rich.console import Console

from isoloss.run import progress
from isoloss.run.book import Book
from isoloss.run.ledger import Ledger
from isoloss.run.progress import Progress
from isoloss.search.plan import plan


def test_it_is_redrawn_four_times_a_second_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    ledger, written = Ledger(tmp_path), io.StringIO()
    ledger.open(small_study(), ARITHMETIC)
    with Progress(Console(file=written, force_terminal=True, width=120), {}) as shown:
        book, drawn = Book(small_study(), plan(small_study()), ledger, [shown]), []
        view = shown._view
        monkeypatch.setattr(shown, "_view", lambda book: drawn.append(now) or view(book))
        for i in range(201):  # 2 s in steps of 10 ms
            now = 100.0 + i / 100
            if i == 150:
                order = book.next("slot")
                assert order is not None
                ledger.finish(small_result(order.trial.key, loss=0.01))
                book.ended("slot", "finished", "")
            shown.tick(book)
    assert drawn == pytest.approx([100.0 + i / 4 for i in range(9)])
    assert "1/4 trials" in written.getvalue()
    assert "1 converged" in written.getvalue()
