"""How a boundary search went: what it knew after how many trials, and why it stopped."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Reason = Literal["known", "limited by noise"]


@dataclass(frozen=True)
class Check:
    """What the first ``trials`` finished trials say: the expected misclassified share of the space, and the median
    width of the 90 % intervals of the band's ends (None where no parameter was named, or no band is open).
    """

    trials: int
    error_volume: float
    width: float | None


@dataclass(frozen=True)
class Course:
    """How a boundary search went: its trials, at most ``most`` of them, the checks on the way, and why it stopped.

    ``reason`` is ``spent`` when as many trials as it may have are finished; None while the search goes on.
    """

    finished: int
    claimed: int
    most: int
    checks: tuple[Check, ...]
    reason: Reason | Literal["spent"] | None

    @property
    def total(self) -> int:
        """How many trials the search will have, as far as is known now."""
        return self.most if self.reason is None else self.claimed

    def facts(self) -> dict[str, Any]:
        """Return the course as JSON values, from which ``of_facts`` makes it again."""
        return asdict(self)

    @classmethod
    def of_facts(cls, facts: dict[str, Any]) -> Course:
        return cls(**{**facts, "checks": tuple(Check(**check) for check in facts["checks"])})
