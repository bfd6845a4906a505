"""The space of a search as a unit cube: what each Optuna distribution is as a coordinate."""

# N points, D dimensions

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from isoloss.search.boundary.kernel import Array

LOG_FROM = 8.0
"""Numbers in a list that span at least this factor are spaced by their logarithm."""


@dataclass(frozen=True)
class Dimension:
    """One parameter's coordinate.

    A range maps its low to 0 and its high to 1, in the logarithm where it is ``log``. ``values`` are the values of a
    list: numbers at coordinates that keep order and spacing, anything else (``unordered``) at its place in the list.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False
    values: tuple[Any, ...] | None = None
    unordered: bool = False

    @classmethod
    def of(cls, distribution: BaseDistribution) -> Dimension:
        """Return the dimension of an Optuna distribution; raises ValueError for one that it does not know."""
        if isinstance(distribution, FloatDistribution):
            return cls(distribution.low, distribution.high, distribution.log, distribution.step)
        if isinstance(distribution, IntDistribution):
            step = None if distribution.log else float(distribution.step)
            return cls(distribution.low, distribution.high, distribution.log, step, whole=True)
        if isinstance(distribution, CategoricalDistribution):
            values = tuple(distribution.choices)
            numbers = sorted(x for x in values if isinstance(x, (int, float)) and not isinstance(x, bool))
            if len(numbers) == len(values):
                low, high = float(numbers[0]), float(numbers[-1])
                return cls(low, high, low > 0 and high / low >= LOG_FROM, values=tuple(numbers))
            return cls(0.0, 1.0, values=values, unordered=True)
        raise ValueError(f"a boundary search knows float, int and categorical distributions, not {distribution!r}")

    @property
    def size(self) -> float:
        """How many values there are; infinite for a continuous range."""
        if self.values is not None:
            return len(self.values)
        if self.step is None and not self.whole:
            return math.inf if self.high > self.low else 1
        return math.floor((self.high - self.low) / (self.step or 1.0) + 1e-9) + 1

    def encode(self, value: Any) -> float:
        """Return a value's coordinate, outside [0, 1] for a number beyond the range; raises ValueError for others."""
        if self.unordered:
            if value not in (self.values or ()):
                raise ValueError(f"{value!r} is none of {self.values}")
            return float((self.values or ()).index(value))
        try:
            low, high, value = (math.log(x) if self.log else float(x) for x in (self.low, self.high, value))
        except TypeError:
            raise ValueError(f"{value!r} is no number") from None
        return (value - low) / (high - low) if high > low else value - low

    def each(self) -> Array:
        """Return the coordinates of every value of a list or of a range that has steps."""
        values = self.values
        if values is None:
            values = tuple(self.low + np.arange(int(self.size)) * (self.step or 1.0))
        return np.array([self.encode(value) for value in values])

    def cover(self, fractions_N: Array) -> Array:
        """Return the coordinates of the values at given fractions of the way through the list or the range."""
        if math.isinf(self.size):
            return fractions_N
        if self.size == 1:
            return np.zeros_like(fractions_N)
        if self.values is not None:
            coordinates = self.each()
            return coordinates[np.minimum((fractions_N * len(coordinates)).astype(int), len(coordinates) - 1)]
        if not self.log:
            place_N = np.minimum(np.floor(fractions_N * self.size), self.size - 1)
            return place_N * (self.step or 1.0) / (self.high - self.low)
        # Each whole number owns the stretch of the logarithm that rounds to it.
        low, high = math.log(max(self.low - 0.5, 0.5)), math.log(self.high + 0.5)
        whole_N = np.clip(np.round(np.exp(low + fractions_N * (high - low))), self.low, self.high)
        return np.log(whole_N / self.low) / math.log(self.high / self.low)

    def value(self, coordinate: float) -> Any:
        """Return the value at a coordinate, the nearest there is."""
        if self.unordered:
            return (self.values or ())[int(coordinate)]
        if self.values is not None:
            return min(self.values, key=lambda value: abs(self.encode(value) - coordinate))
        low, high = (math.log(x) if self.log else x for x in (self.low, self.high))
        value = low + min(max(coordinate, 0.0), 1.0) * (high - low)
        if self.step is not None:
            value = self.low + round((value - self.low) / self.step) * self.step
        value = float(f"{math.exp(value) if self.log else value:.12g}")
        value = min(max(value, self.low), self.high)  # after rounding, which may step over an end
        return round(value) if self.whole else value


class Space:
    """The parameters of a search, in a fixed order."""

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self.names = tuple(distributions)
        self.dimensions = tuple(Dimension.of(distribution) for distribution in distributions.values())
        self.unordered_D: NDArray[np.bool_] = np.array([one.unordered for one in self.dimensions], dtype=bool)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> float:
        """How many points there are; infinite where a dimension is continuous."""
        return math.prod(one.size for one in self.dimensions)

    def encode(self, points: Sequence[Mapping[str, Any]]) -> Array:
        """Return the coordinates of points given by name, (N, D); raises KeyError or ValueError for what has none."""
        columns = [[one.encode(point[name]) for point in points]
                   for name, one in zip(self.names, self.dimensions, strict=True)]  # fmt: skip
        return np.array(columns, dtype=float).reshape(len(self), len(points)).T

    def cover(self, fractions_ND: Array) -> Array:
        """Return coordinates at fractions of each dimension, (N, D): even fractions cover the space evenly."""
        columns = [one.cover(column_N) for one, column_N in zip(self.dimensions, fractions_ND.T, strict=True)]
        return np.stack(columns, axis=1) if columns else np.zeros((len(fractions_ND), 0))

    def every(self) -> Array:
        """Return the coordinates of every point of a finite space, (N, D)."""
        columns = np.meshgrid(*(one.each() for one in self.dimensions), indexing="ij")
        return np.stack([column.ravel() for column in columns], axis=1) if columns else np.zeros((1, 0))

    def point(self, coordinates_D: Array) -> dict[str, Any]:
        """Return the values at given coordinates, by name."""
        return {name: one.value(x) for name, one, x in zip(self.names, self.dimensions, coordinates_D, strict=True)}
