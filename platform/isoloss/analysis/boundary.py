"""What a boundary search found: its map, the band of learning rates at each place of it, and how it came to know it."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isoloss.analysis.table import axis_value
from isoloss.config.search import Boundary
from isoloss.outcome import Curve
from isoloss.run.ledger import Ledger
from isoloss.run.members import history, members
from isoloss.search import boundary_plan, parameters
from isoloss.search.boundary import stopping
from isoloss.search.boundary.band import End, bands
from isoloss.search.boundary.course import Check, Course
from isoloss.search.boundary.map import BoundaryMap, Seen
from isoloss.search.boundary.sampler import FIT_ERRORS, starting_trials
from isoloss.study import Study

LEVELS = (0.5, 0.9)
"""Shares of seeds that converge within a band: the median seed, and nine seeds in ten."""

PLACES = 9
"""Even places at which an axis that is a range is looked at, the middle one among them."""

MOST_ROWS = 200
"""At most so many combinations of the other axes are tabled."""

MOST_CHECKS = 10

END_COLUMNS = ("", "_from", "_to", "_bound", "_is_bound", "_fringe")
COLUMNS = ("level", "closed", "islands", *(f"{end}{column}" for end in ("lowest", "highest") for column in END_COLUMNS))
"""The columns of ``boundary_table`` beside the other axes."""


@dataclass(frozen=True)
class Findings:
    """All that a report tells of a boundary search: its map, the table of its bands, its course.

    ``table`` is None where the study has no learning-rate axis. ``number`` is each claimed trial's place in the order
    of claims, by key, and the first ``start`` of them cover the space evenly.
    """

    known: BoundaryMap
    table: pd.DataFrame | None
    course: Course
    number: dict[str, int]
    start: int


def findings(study: Study, ledger: Ledger) -> Findings | None:
    """Return what a study's boundary search found; None for other searches, and before a map can be fitted."""
    if not isinstance(study.search, Boundary) or not study.axes:
        return None
    claims = history(study, ledger)
    known = _fitted(study, _seen(study, finished_of(claims)))
    if known is None:
        return None
    keys = [trial.key for _, _, trial in members(study, ledger.claims())]
    return Findings(
        known=known,
        table=boundary_table(study, known) if boundary_plan.along(study) else None,
        course=_course(study, study.search, claims, known),
        number={key: number for number, key in enumerate(keys)},
        start=starting_trials(known.space) if study.search.start is None else study.search.start,
    )


def finished_of(claims: Sequence[tuple[dict[str, Any], Curve | None, bool]]) -> list[boundary_plan.Finished]:
    """Return cell and curve of every finished trial, in the order of their claims."""
    return [(cell, curve) for cell, curve, _ in claims if curve is not None]


def _seen(study: Study, finished: Sequence[tuple[dict[str, Any], Curve]]) -> Seen:
    return boundary_plan.seen(study, boundary_plan.space_of(study), finished)


def _fitted(study: Study, seen: Seen) -> BoundaryMap | None:
    if not len(seen):
        return None
    try:
        return BoundaryMap(boundary_plan.space_of(study), seen)
    except FIT_ERRORS:
        return None


def check_counts(finished: int) -> list[int]:
    """Return at most ``MOST_CHECKS`` even numbers of finished trials to check at, the last of them all."""
    step = math.ceil(finished / MOST_CHECKS / stopping.EVERY) * stopping.EVERY
    return [*range(step, finished, step), finished] if finished else []


def _checks(study: Study, seen: Seen, last: BoundaryMap | None = None) -> list[Check]:
    """Return what the first trials said of the share of the space on the wrong side, at several numbers of them.

    The widths of the checks are left out. Where no map can be fitted there is no check. ``last`` is the map of all
    trials, where it is there already.
    """
    found = []
    for count in check_counts(len(seen)):
        known = last if last is not None and count == len(seen) else _fitted(study, seen[:count])
        if known is not None:
            found.append(Check(count, known.error_volume, None))
    return found


def course(study: Study, ledger: Ledger) -> Course:
    """Return how a study's boundary search went so far; raises TypeError for another search."""
    search = study.search
    if not isinstance(search, Boundary):
        raise TypeError(f"{study.name} has no boundary search but {search.kind!r}")
    return _course(study, search, history(study, ledger))


def _course(
    study: Study,
    search: Boundary,
    claims: list[tuple[dict[str, Any], Curve | None, bool]],
    last: BoundaryMap | None = None,
) -> Course:
    finished, claimed = finished_of(claims), len(claims)
    space = boundary_plan.space_of(study)
    most = int(min(search.trials, space.size * study.replicates))
    reason: Any = None
    # A fit that does not succeed stops no search: it goes on, and its next check decides.
    with contextlib.suppress(*FIT_ERRORS):
        reason = boundary_plan.reason(study, search, space, boundary_plan.settled(claims))
    if reason is None and len(finished) == claimed >= most:
        reason = "spent"
    found = _checks(study, _seen(study, finished), last) if study.axes else []
    return Course(len(finished), claimed, most, tuple(found), reason)


def others_of(study: Study) -> tuple[str, ...]:
    """Return the axes that hold still along a band."""
    return tuple(path for path in study.axes if path != boundary_plan.along(study))


def boundary_table(study: Study, known: BoundaryMap) -> pd.DataFrame:
    """Return the band of learning rates at each combination of the other axes, one row a level of ``LEVELS``.

    Axes that list their values are looked at at all of them, ranges at up to ``PLACES`` even places; of more than
    ``MOST_ROWS`` combinations the first are kept.

    ``closed`` is the probability that at no learning rate a share ``level`` of the seeds converges, ``islands`` that
    they do so on more than one stretch. ``lowest`` and ``highest`` are the medians of the smallest and the largest
    such learning rate (of the longest stretch), NaN where the band is closed; each has its 90 % interval (``_from``,
    ``_to``), the probability that the band runs into that end of the range (``_bound``), so that it is only a bound
    where that exceeds a half (``_is_bound``), and the distance over which the share of converging seeds goes from 0.9
    to 0.1 (``_fringe``): in decades where the axis is logarithmic, NaN where it does not go so far.

    Raises ValueError for a study without a learning-rate axis.
    """
    along = boundary_plan.along(study)
    if along is None:
        raise ValueError(f"{study.name} has no learning-rate axis, so that it has no band")
    others = others_of(study)
    rows = []
    for values in itertools.islice(itertools.product(*(places(study, known, path) for path in others)), MOST_ROWS):
        cell = dict(zip(others, values, strict=True))
        at = point(study, cell)
        for found in bands(known, along, at, LEVELS):
            ends = {
                f"{name}{column}": value
                for name, end in (("lowest", found.low), ("highest", found.high))
                for column, value in _end(end)
            }
            shown = {path: axis_value(value) for path, value in cell.items()}
            rows.append({**shown, "level": found.level, "closed": found.closed, "islands": found.islands, **ends})
    return pd.DataFrame(rows, columns=[*others, *COLUMNS])


def _end(end: End | None) -> Iterator[tuple[str, Any]]:
    nan = math.nan
    values = (nan, nan, nan, nan, False, nan)
    if end is not None:
        values = (end.value, *end.interval, end.bound, end.bound > 0.5, nan if end.fringe is None else end.fringe)
    yield from zip(END_COLUMNS, values, strict=True)


def places(study: Study, known: BoundaryMap, path: str) -> list[Any]:
    """Return the values of an axis at which the table looks: all that it lists, or even places of its range."""
    listed = study.listed(path)
    if listed is not None:
        numbers = all(isinstance(value, (int, float)) for value in listed)
        return sorted(listed) if numbers else list(listed)
    dimension = known.space.dimensions[known.space.names.index(path)]
    ranges = [one for one in others_of(study) if study.listed(one) is None]
    lists = math.prod(len(study.listed(one) or ()) for one in others_of(study) if one not in ranges)
    # An odd number, so that the middle is one of them.
    each = max((n for n in range(1, PLACES + 1, 2) if lists * n ** len(ranges) <= MOST_ROWS), default=1)
    fractions = np.linspace(0.0, 1.0, each) if each > 1 else np.array([0.5])
    return list(dict.fromkeys(dimension.value(x) for x in fractions))


def point(study: Study, cell: dict[str, Any]) -> dict[str, Any]:
    """Return some axes' values as the space of the search names them."""
    return {path: parameters.params(study, {path: value})[path] for path, value in cell.items()}
