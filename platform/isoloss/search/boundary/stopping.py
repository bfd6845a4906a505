"""When a map is known well enough: a stopping rule that is a function of the finished trials alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from isoloss.search.boundary.band import band
from isoloss.search.boundary.course import Check, Reason
from isoloss.search.boundary.map import BoundaryMap, Seen
from isoloss.search.boundary.space import Space

EVERY = 4
"""Finished trials between two checks."""

IN_A_ROW = 3
LOOK_BACK = 16
"""Trials, or a quarter of them all, that may have been running when a search stopped."""

PLACES = 12
"""At most so many combinations of the other parameters are looked at for the width of the band's ends."""

STALLED = 0.2
"""A volume that fell by less than this share while the trials doubled is held up by noise: even a mean of independent
readings would have fallen by 0.29."""


def check(space: Space, seen: Seen, along: str | None = None) -> Check:
    """Return the check of these trials; the band's ends are those along the named parameter."""
    known = BoundaryMap(space, seen)
    return Check(len(seen), known.error_volume, None if along is None else _width(known, along))


def places(space: Space, along: str, most: int = PLACES) -> list[dict[str, Any]]:
    """Return combinations of the other parameters, even over the space: all of their values where these are few."""
    others = [(name, one) for name, one in zip(space.names, space.dimensions, strict=True) if name != along]
    if not others:
        return [{}]
    each = max(1, int(most ** (1.0 / len(others)) + 1e-9))
    values = []
    for _, one in others:
        count = int(min(one.size, max(each, 1)))
        values.append([one.value(x) for x in np.unique(one.cover((np.arange(count) + 0.5) / count))])
    return [dict(zip([name for name, _ in others], row, strict=True)) for row in itertools.product(*values)]


def _width(known: BoundaryMap, along: str) -> float | None:
    found = [band(known, along, at, draws=200) for at in places(known.space, along)]
    widths = [end.width for one in found for end in (one.low, one.high) if end is not None]
    return median(widths) if widths else None


def checkpoints(finished: int) -> list[int]:
    """Return the numbers of trials at which a search is checked: every four at first, then at every sixteenth more."""
    counts = [EVERY]
    while (more := counts[-1] + EVERY * max(1, counts[-1] // (16 * EVERY))) <= finished:
        counts.append(more)
    return counts if finished >= EVERY else []


def reason_to_stop(
    check_of: Callable[[int], Check], finished: int, fewest: int, tolerance: float, width: float
) -> Reason | None:
    """Return why to stop after so many finished trials, given what the first of them say.

    ``known``: at three checks in a row, the volume is at most ``tolerance`` and the width, where there is one, at most
    ``width``. ``limited by noise``: at none of the three are they, and what is too high (the volume, else the width)
    did not fall by a fifth while the trials doubled. None before ``fewest`` trials, or twice as many for noise.

    A search that had reason to stop at one of its last checks has stopped: what was running then changes nothing.
    """
    counts = checkpoints(finished)
    for last in range(len(counts), IN_A_ROW - 1, -1):
        three = counts[last - IN_A_ROW : last]
        if three[0] < fewest or three[-1] < finished - max(LOOK_BACK, finished // 4):
            break
        found = _reason_at(check_of, three, fewest, tolerance, width)
        if found is not None:
            return found
    return None


def _reason_at(
    check_of: Callable[[int], Check], counts: list[int], fewest: int, tolerance: float, width: float
) -> Reason | None:
    checks = [check_of(count) for count in counts]
    if all(one.error_volume <= tolerance and (one.width is None or one.width <= width) for one in checks):
        return "known"
    if counts[0] < 2 * fewest:
        return None
    before = (check_of(count // 2 // EVERY * EVERY) for count in counts)
    if all(_stalled(now, then, tolerance, width) for now, then in zip(checks, before, strict=True)):
        return "limited by noise"
    return None


def _stalled(now: Check, then: Check, tolerance: float, width: float) -> bool:
    """Say whether the number that is still too high has hardly fallen since another check."""
    if now.error_volume > tolerance:
        return now.error_volume > (1.0 - STALLED) * then.error_volume
    if now.width is None or then.width is None or now.width <= width:
        return False
    return now.width > (1.0 - STALLED) * then.width
