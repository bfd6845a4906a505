"""The interactive figure of a boundary search: map, bands, the order of the trials, how the map came to be known."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import plotly.graph_objects as go

from isoloss.analysis.boundary import LEVELS
from isoloss.config.search import Boundary
from isoloss.report import words
from isoloss.report.boundary_drawing import Drawing, Line, Panel
from isoloss.report.boundary_words import MOST_SEEDS, probability
from isoloss.report.course_words import share
from isoloss.report.figures import BAR, FONT, WIDTH, Ticks, safe
from isoloss.report.marks import MARKS

CHANCE = ("#F8FAF7", "#DBE5EC", "#BED1E0", "#A1BED5", "#82ABC9")
"""Colours of a probability, evenly darker in CIELAB, and light enough for marks and lines to stand out on all."""

ORDER = "Viridis"
INK = "#111111"
SHADE = 0.18
"""How dark the interval of the median seed's line is."""

ABOVE_ROW = 0.17
"""How far above a row's dots the bars across a line stand."""

RIGHT, BESIDE, GAP, HEAD, AXIS = 16, 84, 164, 24, 58
FREE_ROW, ROW, LEAST_ROW = 300, 36, 240
TITLES = {
    "map": "probability that another seed converges",
    "band": "learning rates that converge",
    "order": "order of the trials",
    "volume": "share of the space expected to be wrong",
}


def boundary_figure(drawn: Drawing) -> go.Figure:
    """Return the figure of a boundary search."""
    return _Figure(drawn).figure()


def slots(drawn: Drawing) -> list[tuple[str, Panel | None]]:
    """Return what stands in the two columns of a boundary's figure, row by row."""
    kinds = ("map", "band") if drawn.found.table is not None else ("map",)
    return [*((kind, panel) for panel in drawn.panels for kind in kinds), ("order", None), ("volume", None)]


def heading(drawn: Drawing, kind: str, panel: Panel | None) -> str:
    """Return the title of one part of the figure."""
    if panel is None or not panel.values:
        return TITLES[kind]
    return f"{words.combination(words.axis_names(drawn.study), panel.values)}: {TITLES[kind]}"


def volume_range(drawn: Drawing) -> tuple[float, float]:
    """Return log10 of the ends of the axis of volumes, with the tolerance well inside."""
    search = drawn.study.search
    assert isinstance(search, Boundary)
    found = [check.error_volume for check in drawn.found.course.checks if check.error_volume > 0]
    low, high = min([search.tolerance, *found]), max([search.tolerance, *found])
    return math.log10(low) - 0.2, math.log10(high) + 0.15


def volume_ticks(bounds: tuple[float, float]) -> list[float]:
    """Return the labelled volumes: 1, 2 and 5 of each decade."""
    every = [step * 10.0**i for i in range(math.floor(bounds[0]), 1) for step in (1, 2, 5)]
    return [float(f"{one:.1g}") for one in every if bounds[0] <= math.log10(one) <= bounds[1]]


class _Figure:
    def __init__(self, drawn: Drawing) -> None:
        self.drawn = drawn
        self.slots = slots(drawn)
        rows = len(drawn.down.texts)
        self.row = FREE_ROW if drawn.down.free else min(420, max(LEAST_ROW, ROW * rows))
        # Without bands, maps and their scales stand in the right column too.
        self.right = BESIDE if drawn.found.table is None else RIGHT
        self.left = max(74, round(6.3 * drawn.down.longest) + 44)
        self.below = AXIS + (6 * drawn.down.longest if self._turned() else 0)
        self.block = HEAD + self.row + self.below
        self.rows = math.ceil(len(self.slots) / 2)
        self.height = self.rows * self.block
        self.traces: list[Any] = []
        self.layout: dict[str, Any] = {}

    @property
    def _inner(self) -> int:
        return WIDTH - self.left - self.right

    @property
    def _half(self) -> float:
        return (self._inner - GAP) / 2

    def _turned(self) -> bool:
        """Say whether the texts of the axis down are too long to stand side by side below a band."""
        return bool(self.drawn.down.texts) and self.drawn.down.longest * 6.5 > self._half / len(self.drawn.down.texts)

    def figure(self) -> go.Figure:
        figure = go.Figure(
            layout={
                "template": "none",
                "width": WIDTH,
                "height": self.height + BAR,
                "margin": {"l": self.left, "r": self.right, "t": BAR, "b": 0},
                "font": {"family": FONT, "size": 12, "color": "#222222"},
                "showlegend": False,
                "hoverlabel": {"align": "left", "bgcolor": "#ffffff", "font": {"size": 12}},
                "coloraxis": self._bar("map", CHANCE, (0.0, 1.0), [0, 0.25, 0.5, 0.75, 1], "chance"),
                "coloraxis2": self._bar(
                    "order", ORDER, (1, max(2, len(self.drawn.found.number))), None, "trial",
                ),
            }
        )  # fmt: skip
        for place, (kind, panel) in enumerate(self.slots):
            self._slot(figure, place, kind, panel)
        figure.update_layout(self.layout)
        figure.add_traces(self.traces)
        return figure

    def _bar(self, kind: str, scale: Any, span: tuple[float, float], ticks: Any, title: str) -> dict[str, Any]:
        colours = scale if isinstance(scale, str) else [[i / (len(scale) - 1), one] for i, one in enumerate(scale)]
        row, column = divmod([slot for slot, _ in self.slots].index(kind), 2)
        left = (column * (self._half + GAP) + self._half + 8) / self._inner
        bar: dict[str, Any] = {
            "title": {"text": title, "side": "top", "font": {"size": 11}}, "thickness": 11, "lenmode": "pixels",
            "len": min(200, self.row), "x": left, "xanchor": "left", "xpad": 0, "ypad": 0, "outlinewidth": 0,
            "y": 1 - (row * self.block + HEAD) / self.height, "yanchor": "top", "tickfont": {"size": 11},
        }  # fmt: skip
        if ticks is not None:
            bar |= {"tickvals": ticks}
        return {"colorscale": colours, "cmin": span[0], "cmax": span[1], "colorbar": bar}

    def _slot(self, figure: go.Figure, place: int, kind: str, panel: Panel | None) -> None:
        row, column = divmod(place, 2)
        left = column * (self._half + GAP) / self._inner
        top = 1 - row * self.block / self.height
        high = top - HEAD / self.height
        suffix = "" if place == 0 else str(place + 1)
        across, down = getattr(self, f"_axes_{kind}")()
        look = {"linecolor": "#999999", "showline": True, "mirror": True, "zeroline": False, "ticks": "outside",
                "ticklen": 3, "tickcolor": "#999999"}  # fmt: skip
        self.layout |= {
            f"xaxis{suffix}": {
                **look, **across, "domain": [left, min(1.0, left + self._half / self._inner)], "anchor": f"y{suffix}",
            },
            f"yaxis{suffix}": {
                **look, **down, "domain": [max(0.0, high - self.row / self.height), high], "anchor": f"x{suffix}",
            },
        }  # fmt: skip
        title = textwrap.shorten(heading(self.drawn, kind, panel), 62, placeholder=" …")
        figure.add_annotation(
            text=f"<b>{chr(ord('A') + place)}</b>  {safe(title)}" if place < 26 else safe(title), x=left, y=high,
            xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=2, showarrow=False, align="left",
        )  # fmt: skip
        self.axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        getattr(self, f"_draw_{kind}")(figure, panel)

    def _trace(self, **fields: Any) -> None:
        self.traces.append({"type": "scatter", "hoverinfo": "skip", "mode": "lines", **self.axes, **fields})

    # --- the axes of each part

    def _axis(self, ticks: Ticks, title_standoff: int) -> dict[str, Any]:
        return {**ticks.layout(), "showgrid": False, "title": {"text": safe(ticks.title), "standoff": title_standoff}}

    def _axes_map(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._axis(self.drawn.across, 6), self._axis(self.drawn.down, 8)

    _axes_order = _axes_map

    def _axes_band(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._axis(self.drawn.down, 6), {**self._axis(self.drawn.across, 8), "showgrid": True,
                                                "gridcolor": "#ececec"}  # fmt: skip

    def _axes_volume(self) -> tuple[dict[str, Any], dict[str, Any]]:
        bounds = volume_range(self.drawn)
        ticks = volume_ticks(bounds)
        last = max([check.trials for check in self.drawn.found.course.checks], default=1)
        across = {"range": [0, 1.04 * last], "showgrid": False, "title": {"text": "finished trials", "standoff": 6}}
        return across, {
            "type": "log", "range": list(bounds), "tickvals": ticks, "ticktext": [f"{one:g}" for one in ticks],
            "gridcolor": "#ececec", "title": {"text": "share of the space", "standoff": 8},
        }  # fmt: skip

    # --- what each part draws

    def _draw_map(self, figure: go.Figure, panel: Panel) -> None:
        self.traces.append({
            "type": "heatmap", "x": _short(self.drawn.across_X), "y": _short(self.drawn.down_Y),
            "z": [[round(float(one), 3) for one in row] for row in panel.chance_YX], "coloraxis": "coloraxis",
            "hovertemplate": "probability %{z:.2f}<extra></extra>", **self.axes,
        })  # fmt: skip
        for line in panel.lines:
            self._interval(line)
            self._trace(**self._path(line, across="x"))
        for name, mark in MARKS.items():
            here = [dot for dot in panel.dots if dot["state"] == name]
            self._dots(here, mark.plotly_symbol, mark.colour if here and here[0]["finished"] else mark.ink)

    def _dots(self, dots: list[dict[str, Any]], symbol: str, colour: Any, **look: Any) -> None:
        if dots:
            self._trace(
                x=_short(dot["across"] for dot in dots), y=_short(dot["down"] for dot in dots), mode="markers",
                marker={"symbol": symbol, "size": 8, "color": colour, "opacity": 1,
                        "line": {"width": 0.7, "color": "#ffffff"}, **look},
                hovertext=[_hover(dot["about"]) for dot in dots], hovertemplate="%{hovertext}<extra></extra>",
                hoverinfo="text",
            )  # fmt: skip

    def _interval(self, line: Line) -> None:
        """Draw the 90% interval of a line: as a band around the median seed's, as bars across the other."""
        if line.level == LEVELS[0]:
            self._trace(
                x=_short([*line.low, *reversed(line.high)]), y=_short([*line.down, *reversed(line.down)]),
                fill="toself", line={"width": 0}, fillcolor=f"rgba(17,17,17,{SHADE})",
            )  # fmt: skip
            return
        above = 0.0 if self.drawn.down.free else ABOVE_ROW
        self._trace(
            x=_short(line.across[i] for i in line.marks), y=_short(line.down[i] + above for i in line.marks),
            mode="markers", marker={"size": 0.1, "color": INK},
            error_x=self._error(line, thickness=0.9, width=3),
        )  # fmt: skip

    @staticmethod
    def _error(line: Line, thickness: float, width: float) -> dict[str, Any]:
        return {
            "type": "data", "symmetric": False, "thickness": thickness, "width": width, "color": INK,
            "array": [line.high[i] - line.across[i] for i in line.marks],
            "arrayminus": [line.across[i] - line.low[i] for i in line.marks],
        }  # fmt: skip

    @staticmethod
    def _path(line: Line, across: str) -> dict[str, Any]:
        sides = {across: _short(line.across), "y" if across == "x" else "x": _short(line.down)}
        dash = "solid" if line.level == LEVELS[0] else "dash"
        return {**sides, "line": {"color": INK, "width": 2 if dash == "solid" else 1.5, "dash": dash}}

    def _draw_band(self, figure: go.Figure, panel: Panel) -> None:
        for level in LEVELS:
            shift = 0.0 if self.drawn.down.free else (-0.07 if level == LEVELS[0] else 0.07)
            for line in panel.lines:
                if line.level == level:
                    self._ends(line, shift)
        for place, probable in panel.closed:
            half = 0.46
            low, high = (place * 0.94, place * 1.06) if self.drawn.down.free else (place - half, place + half)
            figure.add_shape(
                type="rect", xref=self.axes["xaxis"], yref=f"{self.axes['yaxis']} domain", x0=low, x1=high, y0=0, y1=1,
                fillcolor="#e4e4e4", line={"width": 0}, layer="below",
            )  # fmt: skip
            at = math.log10(place) if self.drawn.down.log else place
            figure.add_annotation(
                text=f"closed ({probability(probable)})", x=at, y=0.5, xref=self.axes["xaxis"],
                yref=f"{self.axes['yaxis']} domain", textangle=-90, showarrow=False, font={"size": 12},
            )  # fmt: skip

    def _ends(self, line: Line, shift: float) -> None:
        down = [place + shift for place in line.down]
        solid = line.level == LEVELS[0]
        seeds = "the median seed" if solid else f"{MOST_SEEDS} of seeds"
        joined = len(line.marks) > 1
        if joined:
            self._trace(**{**self._path(line, across="y"), "x": _short(down)})
        outward = "triangle-up" if line.end == "highest" else "triangle-down"
        value = words.value_text
        path = "optimizer.learning_rate"
        self._trace(
            x=_short(down[i] for i in line.marks), y=_short(line.across[i] for i in line.marks), mode="markers",
            marker={
                "symbol": [f"{outward}-open" if line.is_bound[i] else "circle" for i in line.marks],
                "size": [12 if line.is_bound[i] else 7 for i in line.marks],
                "color": [INK if solid or line.is_bound[i] else "#ffffff" for i in line.marks],
                "line": {"width": 1.4, "color": INK}, "opacity": 1,
            },
            error_y=self._error(line, thickness=1.4 if solid else 1, width=4),
            hovertext=[
                f"{line.end} learning rate for {seeds}<br>{value(path, line.across[i])} "
                f"({value(path, line.low[i])} to {value(path, line.high[i])})"
                + ("<br>only a bound: the band runs into the end of the range" if line.is_bound[i] else "")
                for i in line.marks
            ] if self.drawn.across.free else [f"{line.end} learning rate for {seeds}" for _ in line.marks],
            hoverinfo="text", hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip

    def _draw_order(self, figure: go.Figure, panel: None) -> None:
        for start, symbol, size in ((True, "diamond", 9), (False, "circle", 8)):
            here = [dot for dot in self.drawn.dots if dot["start"] == start]
            self._dots(here, symbol, [dot["number"] + 1 for dot in here], coloraxis="coloraxis2", size=size,
                       line={"width": 0.7, "color": "#333333"})  # fmt: skip

    def _draw_volume(self, figure: go.Figure, panel: None) -> None:
        search, checks = self.drawn.study.search, self.drawn.found.course.checks
        assert isinstance(search, Boundary)
        self._trace(
            x=[check.trials for check in checks], y=[check.error_volume for check in checks], mode="lines+markers",
            line={"color": INK, "width": 1.5}, marker={"color": INK, "size": 7}, hoverinfo="text",
            hovertext=[f"{share(check.error_volume)} at {check.trials} finished trials" for check in checks],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
        figure.add_shape(
            type="line", xref=f"{self.axes['xaxis']} domain", yref=self.axes["yaxis"], x0=0, x1=1,
            y0=search.tolerance, y1=search.tolerance, line={"dash": "dash", "width": 1.2, "color": "#C44E00"},
        )  # fmt: skip
        figure.add_annotation(
            text=f"tolerance {search.tolerance:g}", x=0.02, y=math.log10(search.tolerance),
            xref=f"{self.axes['xaxis']} domain", yref=self.axes["yaxis"], xanchor="left", yanchor="top",
            showarrow=False, font={"size": 11, "color": "#8a3700"},
        )  # fmt: skip


def _short(values: Any) -> list[float]:
    """Return numbers with as many digits as a figure shows."""
    return [float(f"{float(value):.5g}") for value in values]


def _hover(lines: list[str]) -> str:
    return "<br>".join(safe(part) for line in lines for part in textwrap.wrap(line, 70))
