"""The interactive surface: for each panel of the plane, outcome at the left and median excess loss at the right."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from isoloss.analysis.surface import Plane, axis_values, records, scattered
from isoloss.config.axes import Log
from isoloss.report import words
from isoloss.report.marks import MARKS, code, state, tally
from isoloss.study import Study

WIDTH, RIGHT, GAP = 980, 90, 36
PAGE = 760
"""How many pixels of figures a printed page holds."""
ROW, POINTS_ROW, AXIS, HEAD, TITLE, BAR = 34, 230, 58, 22, 24, 26
MOST_PANELS = 40
"""So many panels are drawn at most; the page says so when there are more."""
MOST_NUMBERS = 14
"""Above so many columns a cell has no room for its number; it stays in the hover text."""
FONT = "Helvetica, Arial, sans-serif"
SCALE = "Cividis"


def safe(text: str) -> str:
    """Return ``text`` so that plotly draws it as it is instead of reading it as markup."""
    return html.escape(text, quote=False)


@dataclass(frozen=True)
class Ticks:
    """One axis of the plane: where each value is drawn, and the texts beside it.

    Listed values stand at 0, 1, 2 ..., equally wide; scattered ones where they are, on a logarithmic axis if declared.
    """

    title: str
    positions: Mapping[Any, float]
    texts: tuple[str, ...]
    log: bool = False
    free: bool = False
    span: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, study: Study, cells: pd.DataFrame, path: str | None) -> Ticks:
        """Return the ticks of an axis over all panels, so that panels share them."""
        if path is None:
            return cls("", {None: 0.0}, ("",), span=(-0.5, 0.5))
        title = words.axis_names(study)[path]
        values = axis_values(study, path, cells)
        if scattered(study, path):
            axis = study.axes[path]
            assert not hasattr(axis, "values")
            log = isinstance(axis, Log)
            low, high = (math.log10(axis.low), math.log10(axis.high)) if log else (axis.low, axis.high)
            margin = 0.04 * (high - low)
            positions = {value: float(value) for value in values}
            return cls(title, positions, (), log=log, free=True, span=(low - margin, high + margin))
        texts = tuple(words.value_texts(values))
        return cls(title, {value: float(i) for i, value in enumerate(values)}, texts, span=(-0.5, len(values) - 0.5))

    def at(self, cell: Mapping[str, Any], path: str | None) -> float:
        """Return where a cell stands on this axis."""
        return self.positions[None if path is None else cell[path]]

    def layout(self) -> dict[str, Any]:
        """Return the axis as plotly describes it."""
        look = {"range": list(self.span), "zeroline": False, "showgrid": self.free, "gridcolor": "#e6e6e6"}
        if self.log:
            values, texts = self.decades()
            return {**look, "type": "log", "tickvals": values, "ticktext": texts}
        if self.free:
            return {**look, "type": "linear"}
        texts = ["<br>".join(map(safe, lines)) for lines in self.lines]
        return {**look, "ticks": "", "tickvals": list(range(len(texts))), "ticktext": texts}

    def decades(self) -> tuple[list[float], list[str]]:
        """Return the labelled values of a logarithmic axis and their texts: decades, or 1, 2, 5 where it spans one."""
        low, high = self.span
        steps = (1.0,) if math.floor(high) - math.ceil(low) > 0 else (1.0, 2.0, 5.0)
        exponents = range(math.floor(low), math.ceil(high) + 1)
        values = [float(f"{step * 10.0**i:.6g}") for i in exponents for step in steps]
        values = [value for value in values if low <= math.log10(value) <= high]
        whole = all(value >= 1 and value.is_integer() for value in values)
        return values, words.value_texts([int(value) for value in values] if whole else values)

    @property
    def lines(self) -> list[list[str]]:
        """Each text, broken into lines."""
        return [textwrap.wrap(text, words.WRAP) or [""] for text in self.texts]

    @property
    def longest(self) -> int:
        """Characters of the longest line."""
        return max((len(line) for lines in self.lines for line in lines), default=6)


def excess_ticks(study: Study, bounds: tuple[float, float]) -> tuple[list[float], list[str]]:
    """Return where the scale of losses is labelled, as logarithms and as texts: its low end and the decades.

    Losses whose floor nobody knows span no decades: the scale is labelled at three of its places.
    """
    low, high = bounds
    if not study.task.floor_known:
        marks = [low + share * (high - low) for share in (0.0, 0.45, 0.9)]  # below the scale's title
        return marks, [f"{10**mark:.3g}" for mark in marks]
    decades = [float(i) for i in range(math.ceil(low), math.floor(high + 1e-9) + 1) if i > low + 0.4]
    return [low, *decades], [f"≤{10**low:g}", *(f"{10**decade:g}" for decade in decades)]


def excess_range(study: Study, cells: pd.DataFrame) -> tuple[float, float]:
    """Return log10 of the lowest and highest excess loss that colours tell apart.

    A tenth of the convergence threshold and less is one colour: below it a trial has learned its task. Where nobody
    knows the floor, colours tell all losses apart.
    """
    low = math.log10(study.verdict.converged_below / 10)
    found = cells["median_excess"].dropna()
    high = math.log10(max(float(found.max()), 1e-300)) if len(found) else low
    if not study.task.floor_known:
        low = math.log10(float(found.min())) if len(found) else high
        return low, max(high, low + 1e-3)
    return low, max(high, low + 1)


def log_excess(values: Any, bounds: tuple[float, float]) -> Any:
    """Return log10 of excess losses, within ``bounds``; NaN stays NaN."""
    return np.log10(np.clip(np.asarray(values, dtype=float), 10 ** bounds[0], 10 ** bounds[1]))


def hover(study: Study, cell: Mapping[str, Any]) -> str:
    """Return what a reader sees when pointing at a cell."""
    names = words.axis_names(study)
    lines = [f"{names[path]} = {words.value_text(path, cell[path])}" for path in study.axes]
    lines.append(tally(cell))
    if cell["finished"]:
        low, high = words.excess(cell["lowest_excess"]), words.excess(cell["highest_excess"])
        several = f" ({low} to {high})" if cell["finished"] > 1 else ""
        lines.append(
            f"median {words.loss_name(study)} {words.excess(cell['median_excess'])} {study.task.unit}{several}"
        )
        keys = str(cell["keys"]).split()
        lines.append(f"trials {' '.join(keys[:4])}{f' and {len(keys) - 4} more' if len(keys) > 4 else ''}")
    return "<br>".join("<br>".join(safe(part) for part in textwrap.wrap(line, 70)) for line in lines)


def surface_figures(study: Study, cells: pd.DataFrame) -> list[go.Figure]:
    """Return the figures of a surface: heat maps of the listed values, or points where a search scattered them.

    Panels are in one figure as long as it fits on a printed page.
    """
    return _Surface(study, cells).figures()


class _Surface:
    def __init__(self, study: Study, cells: pd.DataFrame) -> None:
        self.study, self.cells = study, cells
        self.plane = Plane.of(study)
        self.panels = list(self.plane.split(study, cells))[:MOST_PANELS]
        self.across = Ticks.of(study, cells, self.plane.across)
        self.down = Ticks.of(study, cells, self.plane.down)
        self.bounds = excess_range(study, cells)
        tall = max((len(lines) for lines in self.down.lines), default=1)
        self.row = POINTS_ROW if self.down.free else max(1, len(self.down.texts)) * max(ROW, 15 * tall)
        if self.plane.points and not self.down.free:
            self.row = max(self.row, 90)
        self.left = max(70, round(6.3 * self.down.longest) + 44)
        self.title = TITLE if self.plane.panels else 0
        self.block = self.title + HEAD + self.row + AXIS + self._turned()

    @property
    def _inner(self) -> int:
        return WIDTH - self.left - RIGHT

    def _turned(self) -> int:
        """Room below the axis for texts that are too long to stand side by side, and so are turned."""
        room = (self._inner - GAP) / 2 / max(1, len(self.across.texts))
        return 6 * self.across.longest if self.across.texts and self.across.longest * 6.5 > room else 0

    def figures(self) -> list[go.Figure]:
        at_once = max(1, PAGE // self.block)
        return [self._figure(self.panels[i : i + at_once]) for i in range(0, len(self.panels), at_once)]

    def _figure(self, panels: list[tuple[dict[str, Any], pd.DataFrame]]) -> go.Figure:
        height = self.block * len(panels) + 4
        figure = go.Figure(
            layout={
                "template": "none",
                "width": WIDTH,
                "height": height + BAR,
                "margin": {"l": self.left, "r": RIGHT, "t": BAR, "b": 0},
                "font": {"family": FONT, "size": 12, "color": "#222222"},
                "plot_bgcolor": "#ffffff" if self.plane.points else "#f1f1f1",
                "showlegend": False,
                "hoverlabel": {"align": "left", "bgcolor": "#ffffff", "font": {"size": 12}},
                "coloraxis": self._colours(height),
            }
        )
        names = words.axis_names(self.study)
        for row, (values, cells) in enumerate(panels):
            top = 1 - row * self.block / height
            if self.title:
                self._note(figure, f"<b>{safe(words.combination(names, values))}</b>", 0, top, 13, shift=8 - self.left)
            for side in (0, 1):
                self._side(figure, row, side, top - self.title / height, height, cells)
        return figure

    def _colours(self, height: int) -> dict[str, Any]:
        values, texts = excess_ticks(self.study, self.bounds)
        return {
            "colorscale": SCALE,
            "cmin": self.bounds[0],
            "cmax": self.bounds[1],
            "colorbar": {
                "title": {"text": self.study.task.unit, "side": "top"},
                "tickvals": values,
                "ticktext": texts,
                "thickness": 12,
                "lenmode": "pixels",
                "len": max(110, min(260, self.block - self.title)),
                "y": 1 - self.title / height,
                "yanchor": "top",
                "x": 1.01,
                "outlinewidth": 0,
            },
        }

    @staticmethod
    def _note(figure: go.Figure, text: str, x: float, y: float, size: int, shift: int = 0) -> None:
        figure.add_annotation(
            text=text, x=x, y=y, xref="paper", yref="paper", xanchor="left", yanchor="top", xshift=shift,
            showarrow=False, font={"size": size}, align="left",
        )  # fmt: skip

    def _side(self, figure: go.Figure, row: int, side: int, top: float, height: int, cells: pd.DataFrame) -> None:
        number = 2 * row + side + 1
        suffix = "" if number == 1 else str(number)
        half = (1 - GAP / self._inner) / 2
        left = side * (1 - half)
        high = top - HEAD / height
        self._note(figure, ("outcome", f"median {words.loss_name(self.study)}")[side], left, top, 12)
        across, down = self.across.layout(), self.down.layout()
        first = {} if number == 1 else {"matches": "x"}
        figure.update_layout(
            {
                f"xaxis{suffix}": {
                    **across, **first, "domain": [left, left + half], "anchor": f"y{suffix}",
                    "title": {"text": safe(self.across.title), "standoff": 6},
                },
                f"yaxis{suffix}": {
                    **down, **({} if number == 1 else {"matches": "y"}),
                    "domain": [max(0.0, high - self.row / height), high], "anchor": f"x{suffix}",
                    "title": {"text": safe(self.down.title) if side == 0 else "", "standoff": 8},
                    "showticklabels": side == 0,
                },
            }
        )  # fmt: skip
        draw = self._points if self.plane.points else self._map
        for trace in draw(records(cells), side):
            figure.add_trace(trace.update(xaxis=f"x{suffix}", yaxis=f"y{suffix}"))

    def _map(self, cells: list[dict[str, Any]], side: int) -> list[Any]:
        shape = (len(self.down.texts), len(self.across.texts))
        numbers = np.full(shape, np.nan)
        texts, hovers = np.full(shape, "", dtype=object), np.full(shape, "", dtype=object)
        order = list(MARKS)
        for cell in cells:
            place = int(self.down.at(cell, self.plane.down)), int(self.across.at(cell, self.plane.across))
            hovers[place] = hover(self.study, cell)
            if side == 0:
                numbers[place], texts[place] = order.index(state(cell)), code(cell)
            elif cell["finished"]:
                numbers[place] = round(float(log_excess(cell["median_excess"], self.bounds)), 4)
                texts[place] = words.excess(cell["median_excess"])
        roomy = shape[1] <= MOST_NUMBERS
        size = 12 if shape[1] <= 9 else 10 if roomy else 9
        look: dict[str, Any] = {"coloraxis": "coloraxis"}
        if side == 0:
            steps = [(mark.colour, i / len(order), (i + 1) / len(order)) for i, mark in enumerate(MARKS.values())]
            scale = [[at, colour] for colour, low, high in steps for at in (low, high)]
            look = {"colorscale": scale, "zmin": -0.5, "zmax": len(order) - 0.5, "showscale": False}
        return [
            go.Heatmap(
                z=[[None if math.isnan(number) else number for number in line] for line in numbers.tolist()],
                text=texts.tolist(),
                texttemplate="%{text}" if side == 0 or roomy else None,
                textfont={"size": size},
                hovertext=hovers.tolist(),
                hovertemplate="%{hovertext}<extra></extra>",
                xgap=2,
                ygap=2,
                **look,
            )
        ]

    def _points(self, cells: list[dict[str, Any]], side: int) -> list[Any]:
        traces = []
        for name, mark in MARKS.items():
            here = [cell for cell in cells if state(cell) == name]
            if not here or (side == 1 and not here[0]["finished"]):
                continue
            colour: dict[str, Any] = {"color": mark.colour if here[0]["finished"] else mark.ink}
            if side == 1:
                excess = log_excess([cell["median_excess"] for cell in here], self.bounds)
                colour = {"color": excess.round(4).tolist(), "coloraxis": "coloraxis"}
            traces.append(
                go.Scatter(
                    x=[self.across.at(cell, self.plane.across) for cell in here],
                    y=[self.down.at(cell, self.plane.down) for cell in here],
                    mode="markers",
                    marker={
                        "symbol": mark.plotly_symbol,
                        "size": 10,
                        "line": {"width": 0.6, "color": "#333"},
                        **colour,
                    },
                    hovertext=[hover(self.study, cell) for cell in here],
                    hovertemplate="%{hovertext}<extra></extra>",
                )
            )
        return traces
