"""Axes: the values that one field of the configuration takes across a study."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Union

from pydantic import Field, model_validator

from isoloss.config.base import Listed, Part, canonical_json


class Choice(Part):
    """A list of values, or of whole parts such as ``Choice(Linear(), LowRank(rank=8))``."""

    kind: Literal["choice"] = "choice"
    values: Annotated[tuple[Any, ...], Listed]

    def __init__(self, *values: Any, **fields: Any) -> None:
        super().__init__(**({"values": values} if values else {}), **fields)

    @model_validator(mode="after")
    def _varies(self) -> Choice:
        if len(self.values) < 2:
            raise ValueError(f"an axis needs at least two values to change anything, not {len(self.values)}")
        try:
            texts = [canonical_json(value) for value in self.values]
        except (TypeError, ValueError):
            raise ValueError("values must be finite numbers, texts, None or parts") from None
        if len(set(texts)) < len(texts):
            twice = next(value for value, text in zip(self.values, texts, strict=True) if texts.count(text) > 1)
            raise ValueError(f"the value {twice!r} appears twice")
        return self

    def grid(self) -> tuple[Any, ...]:
        """Return every value."""
        return self.values


class _Range(Part):
    low: float
    high: float
    points: Annotated[int, Field(ge=2)] | None = None

    def __init__(self, low: float | None = None, high: float | None = None, /, **fields: Any) -> None:
        super().__init__(
            **({"low": low} if low is not None else {}), **({"high": high} if high is not None else {}), **fields
        )

    @model_validator(mode="after")
    def _ordered(self) -> _Range:
        if not self.low < self.high:
            raise ValueError(f"the range must run from low to high, not from {self.low:g} to {self.high:g}")
        return self

    def at(self, fraction: float) -> float:
        """Return the value at ``fraction`` of the way from low to high."""
        raise NotImplementedError

    def grid(self) -> tuple[float, ...]:
        """Return the evenly spaced points, rounded to 12 digits so that they are the same on every machine.

        Raises ValueError when the axis has no ``points``.
        """
        if self.points is None:
            raise ValueError("a grid needs the axis's number of points, as in Log(1e-4, 1e-1, points=7)")
        return tuple(float(f"{self.at(i / (self.points - 1)):.12g}") for i in range(self.points))


class Log(_Range):
    """A range whose points are evenly spaced in the logarithm."""

    kind: Literal["log"] = "log"

    @model_validator(mode="after")
    def _positive(self) -> Log:
        if self.low <= 0:
            raise ValueError(f"a logarithmic range must start above 0, not at {self.low:g}")
        return self

    def at(self, fraction: float) -> float:
        """Return the value at ``fraction`` of the way from low to high, in the logarithm."""
        return math.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low)))


class Span(_Range):
    """A range whose points are evenly spaced."""

    kind: Literal["span"] = "span"

    def at(self, fraction: float) -> float:
        """Return the value at ``fraction`` of the way from low to high."""
        return self.low + fraction * (self.high - self.low)


Axis = Annotated[Union[Choice, Log, Span], Field(discriminator="kind")]
