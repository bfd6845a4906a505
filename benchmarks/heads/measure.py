"""CPU time of several ways to do one thing, taking turns; bars, and tables of what came out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A bound that a measured number is to stay below."""

    name: str
    value: float
    limit: float

    def row(self) -> tuple[str, ...]:
        return self.name, f"{self.value:.2f}", f"≤ {self.limit:g}", "pass" if self.value <= self.limit else "**FAIL**"


class Times:
    """CPU seconds of each way in each round, its first and untimed one aside."""

    def __init__(self, ways: dict[str, Callable[[], object]], rounds: int) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way()
        for _ in range(rounds):
            for name, way in ways.items():
                begun = time.process_time()
                way()
                self.seconds[name].append(time.process_time() - begun)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, base: str) -> float:
        """Return the median over rounds of one way's time over another's."""
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return statistics.median(one / other for one, other in pairs)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a markdown table."""
    lines = [tuple(header), *map(tuple, rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
