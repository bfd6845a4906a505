"""What the figures of a boundary search draw, as numbers: a plane's panels, their lines, dots and closed places.

A panel shows the learning rate across (where it varies) and one other axis down, for one combination of the axes that
list their values; ranges beyond these two are held at their middle, and their trials are seen through them.
"""

# X places across, Y places down

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isoloss.analysis.boundary import LEVELS, Findings, places, point
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import Plane, records, scattered
from isoloss.analysis.table import axis_value
from isoloss.report import words
from isoloss.report.figures import Ticks
from isoloss.search.boundary.space import Dimension
from isoloss.study import Study

ACROSS, DOWN = 141, 80
"""About how many places a map has across and down; with more than ``MANY`` panels it is coarser."""

MANY = 6
MOST_PANELS = 12
"""So many panels are drawn at most, each with its map and its bands; the page says so when there are more."""

HALF = 0.42
"""How far a line reaches from a listed value that stands by itself, in rows."""

ASIDE = 0.15
"""How far from each other the seeds of one cell are drawn, in rows."""

ENDS = ("lowest", "highest")


@dataclass(frozen=True)
class Line:
    """One end of the band at one level over an unbroken run of places down: where it lies, and its 90 % interval.

    ``marks`` are those of its points that stand for places of the table; a single place is drawn as a stroke.
    """

    level: float
    end: str
    down: list[float]
    across: list[float]
    low: list[float]
    high: list[float]
    is_bound: list[bool]
    marks: list[int]


@dataclass(frozen=True)
class Panel:
    """One plane: its combination of the other axes, the chance of converging on a grid, lines, dots, closed places."""

    values: dict[str, Any]
    chance_YX: NDArray[np.float64]
    lines: list[Line]
    dots: list[dict[str, Any]]
    closed: list[tuple[float, float]]


@dataclass(frozen=True)
class Drawing:
    """All panels and the axes that they share; ``dots`` are those of every trial, whatever its panel.

    ``every`` counts the panels that there would be, ``held`` are ranges held at a value; ``ordered`` joins lines down.
    """

    study: Study
    found: Findings
    across: Ticks
    down: Ticks
    across_X: NDArray[np.float64]
    down_Y: NDArray[np.float64]
    panels: list[Panel]
    dots: list[dict[str, Any]]
    every: int
    held: dict[str, Any]
    ordered: bool


def plane_of(study: Study) -> Plane:
    """Return the plane of a boundary's figures: the learning rate across, where it varies."""
    plane = Plane.of(study)
    across, down = plane.across, plane.down
    if LEARNING_RATE in study.axes and across != LEARNING_RATE:
        across, down = LEARNING_RATE, down if down not in (None, LEARNING_RATE) else across
    others = [path for path in study.axes if path not in (across, down)]
    panels = tuple(path for path in others if not scattered(study, path))
    return Plane(across, down, panels, tuple(path for path in others if scattered(study, path)), points=True)


def drawing(study: Study, found: Findings, trials: pd.DataFrame, waiting: pd.DataFrame) -> Drawing:
    """Return what is drawn of a study's boundary, given the tables of its finished trials and of those that wait."""
    return _Drawer(study, found, pd.concat([trials, waiting]) if len(waiting) else trials).drawing()


class _Drawer:
    def __init__(self, study: Study, found: Findings, trials: pd.DataFrame) -> None:
        self.study, self.found, self.trials = study, found, trials
        self.plane = plane_of(study)
        self.across = self._ticks(self.plane.across)
        self.down = self._ticks(self.plane.down)
        self.names = words.axis_names(study)

    def _ticks(self, path: str | None) -> Ticks:
        if path is None:
            return Ticks.of(self.study, self.trials, None)
        listed = [] if scattered(self.study, path) else [axis_value(one) for one in self.study.listed(path) or ()]
        return Ticks.of(self.study, pd.DataFrame({path: listed or self.trials[path].tolist()}), path)

    def drawing(self) -> Drawing:
        listed = [self._listed(path) for path in self.plane.panels]
        every = math.prod(len(values) for values in listed)
        held = {path: self._middle(path) for path in self.plane.folded}
        fewer = 2 if every > MANY else 1
        across_X, across_coordinate_X = self._grid(self.plane.across, self.across, ACROSS // fewer)
        down_Y, down_coordinate_Y = self._grid(self.plane.down, self.down, DOWN // fewer)
        down = None if self.plane.down is None else self._dimension(self.plane.down)
        ordered = down is not None and not down.unordered
        panels = []
        for values in itertools.islice(itertools.product(*listed), MOST_PANELS):
            cell = dict(zip(self.plane.panels, values, strict=True))
            chance_YX = self._chance({**cell, **held}, across_coordinate_X, down_coordinate_Y)
            shown = {path: axis_value(value) for path, value in cell.items()}
            bands = self._bands({**shown, **held})
            closed = [
                (self._place(row, self.plane.down, self.down), row["closed"])
                for row in (bands[LEVELS[0]] if bands else [])
                if math.isnan(row["highest"])
            ]
            lines = [
                line for level, rows in bands.items() for end in ENDS for line in self._lines(level, end, rows, ordered)
            ]
            panels.append(Panel(shown, chance_YX, lines, list(self._dots(shown)), closed))
        return Drawing(
            self.study, self.found, self.across, self.down, across_X, down_Y, panels, list(self._dots({})), every, held,
            ordered,
        )  # fmt: skip

    def _dimension(self, path: str) -> Dimension:
        space = self.found.known.space
        return space.dimensions[space.names.index(path)]

    def _listed(self, path: str) -> list[Any]:
        return places(self.study, self.found.known, path)

    def _middle(self, path: str) -> Any:
        values = places(self.study, self.found.known, path)
        return values[len(values) // 2]

    def _grid(self, path: str | None, ticks: Ticks, count: int) -> tuple[Any, Any]:
        """Return the places of a map along one axis: where they are drawn, and their coordinates in the space."""
        if path is None:
            return np.array([0.0]), np.array([0.0])
        dimension = self._dimension(path)
        if ticks.free:
            low, high = (math.log10(x) if ticks.log else x for x in (dimension.low, dimension.high))
            place_N = np.linspace(low, high, count)
            place_N = 10.0**place_N if ticks.log else place_N
            return place_N, np.array([dimension.encode(place) for place in place_N.tolist()])
        listed = self._listed(path)
        encoded = [dimension.encode(point(self.study, {path: value})[path]) for value in listed]
        if dimension.unordered:
            return np.arange(len(listed)) * 1.0, np.array(encoded)
        # Between two listed values the map is drawn from the one coordinate to the other.
        each = 2 * max(4, round(count / 2 / len(listed)))  # even, so that the listed values are among the places
        place_N = np.linspace(-0.5, len(listed) - 0.5, each * len(listed) + 1)
        return place_N, np.interp(place_N, np.arange(len(listed)), encoded)

    def _chance(self, cell: dict[str, Any], across_X: Any, down_Y: Any) -> NDArray[np.float64]:
        space = self.found.known.space
        point_D = np.zeros(len(space))
        for path, value in point(self.study, cell).items():
            place = space.names.index(path)
            point_D[place] = space.dimensions[place].encode(value)
        points_PD = np.tile(point_D, (len(across_X) * len(down_Y), 1))
        if self.plane.across is not None:
            points_PD[:, space.names.index(self.plane.across)] = np.tile(across_X, len(down_Y))
        if self.plane.down is not None:
            points_PD[:, space.names.index(self.plane.down)] = np.repeat(down_Y, len(across_X))
        return self.found.known.chance(points_PD).reshape(len(down_Y), len(across_X))

    def _bands(self, at: dict[str, Any]) -> dict[float, list[dict[str, Any]]]:
        """Return the rows of the table that lie in a panel, by level."""
        table = self.found.table
        if table is None:
            return {}
        for path, value in at.items():
            table = table[table[path] == value]
        return {level: records(table[table["level"] == level]) for level in LEVELS}

    def _lines(self, level: float, end: str, rows: list[dict[str, Any]], ordered: bool) -> Iterator[Line]:
        run: list[dict[str, Any]] = []
        for row in [*rows, None]:
            if row is not None and not math.isnan(row[end]):
                run.append(row)
            if run and (row is None or math.isnan(row[end]) or not ordered):
                yield self._line(level, end, run)
                run = []

    def _line(self, level: float, end: str, run: list[dict[str, Any]]) -> Line:
        down = [self._place(row, self.plane.down, self.down) for row in run]
        marks = list(range(len(run)))
        if len(run) == 1 and not self.down.free:
            run, marks = run * 3, [1]
            down = [down[0] - HALF, down[0], down[0] + HALF]
        across, low, high = ([self._across(row[f"{end}{part}"]) for row in run] for part in ("", "_from", "_to"))
        return Line(level, end, down, across, low, high, [bool(row[f"{end}_is_bound"]) for row in run], marks)

    @staticmethod
    def _place(row: dict[str, Any], path: str | None, ticks: Ticks) -> float:
        """Return where a row stands on an axis, also at a value of a range that no trial took."""
        return ticks.at(row, path) if path is None or not ticks.free else float(row[path])

    def _across(self, value: float) -> float:
        return float(value) if self.across.free else self.across.positions[value]

    def _dots(self, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
        rows = self.trials
        for path, value in values.items():
            rows = rows[rows[path] == value]
        cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in records(rows):
            cells.setdefault(tuple(row[path] for path in self.study.axes), []).append(row)
        for found in cells.values():
            for i, row in enumerate(found):
                aside = 0.0 if self.down.free else ASIDE * (i - (len(found) - 1) / 2)
                finished = isinstance(row.get("outcome"), str)
                number = self.found.number[row["key"]]
                yield {
                    "across": self._place(row, self.plane.across, self.across),
                    "down": self._place(row, self.plane.down, self.down) + aside,
                    "state": row["outcome"] if finished else row["state"],
                    "finished": finished,
                    "number": number,
                    "start": number < self.found.start,
                    "about": self._about(row, finished, number),
                }

    def _about(self, row: dict[str, Any], finished: bool, number: int) -> list[str]:
        cell = words.combination(self.names, {path: row[path] for path in self.study.axes})
        what = row["outcome"] if finished else str(row["state"]).replace("_", " ")
        number_text = f"{words.excess(row['capped_excess'])} {self.study.task.unit}" if finished else ""
        loss = f", {words.loss_name(self.study)} {number_text}" if finished else ""
        where = "even start" if number < self.found.start else "placed by the search"
        return [cell, f"replicate {row['replicate']}: {what}{loss}",
                f"trial {number + 1} of {len(self.found.number)} ({where}), {row['key']}"]  # fmt: skip
