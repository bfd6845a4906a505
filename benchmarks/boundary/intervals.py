"""How often the 90 % intervals of a band's ends cover the truth, how wide they are, and how far off the middle is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import Any, cast

import numpy as np
from benchmarks.boundary.methods import OURS
from benchmarks.boundary.one_surface import OneSurface
from benchmarks.boundary.runs import Kept, Run, known_from
from benchmarks.boundary.truths import LR, RANK, RANKS, SYNTHETIC, VOCAB_SIZES, V

from isoloss.search.boundary.band import band
from isoloss.search.boundary.map import BoundaryMap, Seen
from isoloss.search.boundary.space import Space

TRIALS = {"band2d": (48, 64, 96, 128), "band3d": (64, 96, 128, 160)}
NARROWEST = 0.1
"""Bands that are narrower than so many decades have no ends to speak of."""

OPEN_2D = 9
"""Vocabulary sizes, evenly spaced by their logarithm, at which a 2-D band is read; a 3-D one, at every second value."""

TWO, ONE = "two surfaces", "one surface"
ESTIMATORS = (TWO, ONE)
ENDS = ("largest stable", "smallest sufficient")


@dataclass(frozen=True)
class Reading:
    """An end of a band against the truth: log10 of the learning rates of the interval's ends and its middle."""

    estimator: str
    trials: int
    end: str
    low: float
    middle: float
    high: float
    truth: float

    @property
    def covers(self) -> bool:
        return self.low <= self.truth <= self.high


@dataclass(frozen=True)
class Summary:
    """Readings in numbers; errors and widths in decades of the learning rate."""

    count: int
    coverage: float
    bias: float
    error: float
    width: float

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Summary:
        off = [one.middle - one.truth for one in readings]
        return cls(
            count=len(readings),
            coverage=mean(one.covers for one in readings),
            bias=median(off),
            error=median(map(abs, off)),
            width=median(one.high - one.low for one in readings),
        )


def places(truth: str) -> list[dict[str, Any]]:
    """Return where the band is read: at each of these, the other parameters' values."""
    if SYNTHETIC[truth].ranks:
        return [{V: v, RANK: rank} for v, rank in itertools.product(VOCAB_SIZES[::2], RANKS[::2])]
    return [{V: round(v)} for v in np.geomspace(VOCAB_SIZES[0], VOCAB_SIZES[-1], OPEN_2D)]


def readings(truth: str, found: Run) -> list[dict[str, Any]]:
    """Return the ends of the band where it is open, after different numbers of trials: the fields of ``Reading``.

    Where an estimator holds an open band for closed, nothing is read.
    """
    space = Space(SYNTHETIC[truth].distributions)
    rows = []
    for trials in TRIALS[truth]:
        one = OneSurface(space, Seen(space.encode(found.points[:trials]), np.array(found.excess[:trials])))
        estimators = {TWO: known_from(space, found, trials), ONE: cast(BoundaryMap, one)}
        for at in places(truth):
            edges = SYNTHETIC[truth].edges(at)
            if edges is None or edges[1] - edges[0] < NARROWEST:
                continue
            for name, known in estimators.items():
                read = band(known, LR, at)
                for end, edge, which in ((read.high, edges[1], ENDS[0]), (read.low, edges[0], ENDS[1])):
                    if end is not None:
                        low, middle, high = map(math.log10, (end.interval[0], end.value, end.interval[1]))
                        rows.append(vars(Reading(name, trials, which, low, middle, high, edge)))
    return rows


def all_readings(kept: Kept, truth: str, seeds: int) -> list[Reading]:
    """Return the readings of every seed of the boundary sampler."""
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        found = kept.run(truth, OURS, seed)
        rows += kept.get(f"intervals/{truth}/{seed}", partial(readings, truth, found))
    return [Reading(**row) for row in rows]
