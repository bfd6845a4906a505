"""Progress on a terminal: trials done and running, outcomes so far, what each slot does, time left."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isoloss.config.base import value_label
from isoloss.outcome import Outcome
from isoloss.run.book import Book
from isoloss.run.ledger import Claim

STYLE = {
    Outcome.CONVERGED: "green",
    Outcome.UNDERTRAINED: "yellow",
    Outcome.PLATEAUED: "dark_orange",
    Outcome.DIVERGED: "red",
    Outcome.NONFINITE: "magenta",
}

REDRAWS_A_SECOND = 4


class Progress:
    """Watches a study's trials and, where the console is a terminal, draws them; elsewhere it stays silent.

    ``expected`` is the predicted cost of trials by key, in any one unit; a trial that it lacks counts as their mean.
    """

    def __init__(self, console: Console, expected: dict[str, float]) -> None:
        self.console, self.expected = console, expected
        self.typical = sum(expected.values()) / len(expected) if expected else 1.0
        self.spent = 0.0  # of the expected cost, by trials that finished in this session
        self.started = time.monotonic()
        self.first_running: float | None = None
        self.points: dict[str, dict[str, Any]] = {}  # the last point of each running trial, by key
        self.live: Live | None = None
        self.drawn = 0.0

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            waiting = Text("starting Ray and the slots …")
            self.live = Live(waiting, console=self.console, refresh_per_second=REDRAWS_A_SECOND)
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()

    def running(self, claim: Claim) -> None:
        pass

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        if self.first_running is None:
            self.first_running = time.monotonic()
        self.points[key] = rows[-1]

    def finished(self, key: str) -> None:
        self.points.pop(key, None)
        self.spent += self.expected.get(key, self.typical)

    def tick(self, book: Book) -> None:
        """Redraw from the book, as often as it can be seen."""
        now = time.monotonic()
        if self.live is not None and now - self.drawn >= 1 / REDRAWS_A_SECOND:
            self.live.update(self._view(book))
            self.drawn = now

    def _view(self, book: Book) -> Group:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(book.study.name, "bold"),
            ProgressBar(total=max(book.plan.total, 1), completed=book.done, width=40),
            f"{book.done}/{book.plan.total} trials, {len(book.running)} running",
            f"{_clock(time.monotonic() - self.started)} gone, {self._left(book)} left",
        )
        counts = [Text(f"{book.outcomes[outcome]} {outcome}", STYLE[outcome]) for outcome in Outcome]
        if book.gave_up:
            counts.append(Text(f"{len(book.gave_up)} given up", "bold red"))
        slots = Table.grid(padding=(0, 2))
        for order in sorted(book.running.values(), key=lambda order: order.claim.number):
            point = self.points.get(order.trial.key)
            where = (
                "starting" if point is None else f"step {point['step']}/{order.trial.steps}, loss {point['loss']:.3f}"
            )
            cell = ", ".join(f"{path.split('.')[-1]} {value_label(value)}" for path, value in order.cell.items())
            slots.add_row(f"t{order.claim.number:04d}", cell, f"replicate {order.claim.replicate}", where)
        return Group(bar, Text("  ").join(counts), slots)

    def _left(self, book: Book) -> str:
        running = {order.trial.key: order.trial.steps for order in book.running.values()}
        partly = sum(
            point["step"] / running[key] * self.expected.get(key, self.typical)
            for key, point in self.points.items()
            if key in running
        )
        if self.first_running is None or not self.spent:
            return "?"
        done = self.spent + partly
        known = sum(self.expected.values())
        unknown = max(book.plan.total - book.done_before - len(self.expected), 0) * self.typical
        gone = time.monotonic() - self.first_running
        return _clock(gone * max(known + unknown - done, 0.0) / done)


def _clock(duration: float) -> str:
    minutes, rest = divmod(int(duration), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
