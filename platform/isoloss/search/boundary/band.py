"""The band of converging values along one parameter: its ends, how sure they are, and the fringe around them."""

# S draws, G points along the parameter

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import BoundaryMap
from isoloss.search.boundary.space import Dimension

DRAWS, POINTS = 400, 201
INTERVAL = (0.05, 0.95)
FRINGE = (0.1, 0.9)


@dataclass(frozen=True)
class End:
    """One end of a band: its median and 90 % interval, in the parameter's values.

    ``bound`` is the probability that the band goes on to the end of the range, so that this is only a bound.
    ``fringe`` is the median distance over which the share of converging seeds goes from 0.9 to 0.1: in decades where
    the parameter is spaced by its logarithm, else in its own unit; None where the share mostly does not go so far.
    ``width`` is the interval's, in the same unit.
    """

    value: float
    interval: tuple[float, float]
    width: float
    bound: float
    fringe: float | None


@dataclass(frozen=True)
class Band:
    """Where, along one parameter, at least a share ``level`` of seeds converge.

    ``closed`` is the probability that there is no such value; the ends are None where it is above a half, and
    otherwise speak of the longest unbroken stretch. ``islands`` is the probability that there is more than one.
    """

    level: float
    closed: float
    islands: float
    low: End | None
    high: End | None


def band(known: BoundaryMap, along: str, at: Mapping[str, Any], level: float = 0.5, draws: int = DRAWS) -> Band:
    """Return the band along a numeric parameter, with every other parameter at the given value; see ``bands``."""
    return bands(known, along, at, (level,), draws)[0]


def bands(
    known: BoundaryMap, along: str, at: Mapping[str, Any], levels: Sequence[float], draws: int = DRAWS
) -> list[Band]:
    """Return the band of each level along a numeric parameter, with every other parameter at the given value.

    They are read off ``draws`` joint draws of the map at 201 points of the range, or at every value where there are
    fewer. Raises ValueError for a parameter that the map does not have, or that has no order.
    """
    space = known.space
    if along not in space.names:
        raise ValueError(f"the map has no parameter {along!r}; it has {', '.join(map(repr, space.names))}")
    place = space.names.index(along)
    dimension = space.dimensions[place]
    if dimension.unordered:
        raise ValueError(f"{along!r} has no order, so that there is no band along it")
    spread = dimension.size > POINTS
    coordinates_G = np.unique(dimension.cover(np.linspace(0.0, 1.0, POINTS))) if spread else dimension.each()
    points_GD = np.tile(space.encode([{**at, along: dimension.low}]), (len(coordinates_G), 1))
    points_GD[:, place] = coordinates_G
    share_SG = known.draws(points_GD, draws, np.random.default_rng(0))
    half = 0.5 / (POINTS - 1) if spread else 0.0
    return [_band(dimension, share_SG, coordinates_G, half, level) for level in levels]


def _band(dimension: Dimension, share_SG: Array, coordinates_G: Array, half: float, level: float) -> Band:
    low_S, high_S, count_S = longest_run(share_SG >= level)
    open_S = count_S > 0
    closed, islands = float(1.0 - open_S.mean()), float((count_S > 1).mean())
    if closed > 0.5:
        return Band(level, closed, islands, None, None)
    share_SG, low_S, high_S = share_SG[open_S], low_S[open_S], high_S[open_S]
    low = _end(dimension, share_SG[:, ::-1], len(coordinates_G) - 1 - low_S, coordinates_G[::-1], half)
    high = _end(dimension, share_SG, high_S, coordinates_G, half)
    return Band(level, closed, islands, low, high)


def longest_run(inside_SG: Any) -> tuple[Any, Any, Any]:
    """Return first and last place of the longest unbroken run in each row, and how many runs the row has."""
    padded_SG = np.pad(inside_SG.astype(np.int8), ((0, 0), (1, 1)))
    turn_SG = np.diff(padded_SG, axis=1)
    row, start = np.nonzero(turn_SG == 1)
    _, stop = np.nonzero(turn_SG == -1)
    low_S, high_S, count_S = np.zeros((3, len(inside_SG)), dtype=int)
    for s, first, beyond in zip(row, start, stop, strict=True):
        if not count_S[s] or beyond - first > high_S[s] - low_S[s] + 1:
            low_S[s], high_S[s] = first, beyond - 1
        count_S[s] += 1
    return low_S, high_S, count_S


def _end(dimension: Dimension, share_SG: Array, last_S: Any, coordinates_G: Array, half: float) -> End:
    """Return the upper end of the run that ends at ``last_S``; for the lower one, everything is given reversed."""
    size = share_SG.shape[1]
    direction = np.sign(coordinates_G[-1] - coordinates_G[0]) if size > 1 else 1.0
    touching_S = last_S == size - 1
    end_S = coordinates_G[last_S] + np.where(touching_S, 0.0, direction * half)
    low, middle, high = np.quantile(end_S, [INTERVAL[0], 0.5, INTERVAL[1]])
    places_G = np.arange(size)
    beyond_SG = places_G > last_S[:, None]
    gone_SG, sure_SG = beyond_SG & (share_SG < FRINGE[0]), ~beyond_SG & (share_SG >= FRINGE[1])
    whole_S = gone_SG.any(axis=1) & sure_SG.any(axis=1)
    gone_S, sure_S = gone_SG.argmax(axis=1), size - 1 - sure_SG[:, ::-1].argmax(axis=1)
    fringe_S = np.abs(coordinates_G[gone_S] - coordinates_G[sure_S])[whole_S]
    unit = _unit(dimension)
    return End(
        value=dimension.value(middle),
        interval=(dimension.value(low), dimension.value(high)),
        width=float(high - low) * unit,
        bound=float(touching_S.mean()),
        fringe=float(np.median(fringe_S)) * unit if whole_S.mean() > 0.5 else None,
    )


def _unit(dimension: Dimension) -> float:
    """Return how long a dimension is: in decades where it is spaced by its logarithm."""
    return math.log10(dimension.high / dimension.low) if dimension.log else dimension.high - dimension.low
