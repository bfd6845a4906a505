"""The surface as a still picture, for papers and for pages that show no HTML."""

from __future__ import annotations

import io
import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isoloss.analysis.surface import Plane, records
from isoloss.config.search import Boundary
from isoloss.report import words
from isoloss.report.figures import MOST_PANELS, Ticks, excess_range, excess_ticks, log_excess
from isoloss.report.marks import MARKS, Mark, code, state
from isoloss.study import Study

WIDTH, DPI = 9.6, 160
ROW, POINTS_ROW = 0.30, 2.2
RIGHT, GAP, ABOVE, BELOW, TITLE, FOOT, TOP = 0.85, 0.3, 0.24, 0.56, 0.24, 0.56, 0.06
MOST_NUMBERS = 14


def surface_picture(study: Study, cells: pd.DataFrame) -> bytes:
    """Return the surface as a PNG file, the same to the byte for the same cells."""
    return _Picture(study, cells).png()


def message_picture(text: str) -> bytes:
    """Return a PNG file that holds a sentence, where there is nothing to draw yet."""
    figure = Figure(figsize=(WIDTH, 1.2), dpi=DPI)
    figure.text(0.5, 0.5, textwrap.fill(text, 90), ha="center", va="center", parse_math=False)
    return png_file(figure)


def png_file(figure: Figure) -> bytes:
    """Return a figure as a PNG file, the same to the byte for the same figure."""
    FigureCanvasAgg(figure)
    sink = io.BytesIO()
    figure.savefig(sink, format="png", metadata={"Software": None})
    return sink.getvalue()


def mark_handles(marks: list[Mark]) -> tuple[list[Any], list[str]]:
    """Return what a legend of points shows for each mark, and its name."""
    look: dict[str, Any] = {"ls": "", "mec": "#333333", "mew": 0.4, "ms": 6}
    handles: list[Any] = [Line2D([], [], marker=mark.matplotlib_marker, c=mark.colour, **look) for mark in marks]
    return handles, [mark.name.replace("_", " ") for mark in marks]


def set_axis(axes: Axes, name: str, ticks: Ticks) -> None:
    """Give the axis ``x`` or ``y`` its scale, range and labels."""
    axis = getattr(axes, f"{name}axis")
    if ticks.log:
        axes.set(**{f"{name}scale": "log"})
    low, high = (10.0**end for end in ticks.span) if ticks.log else ticks.span
    axes.set(**{f"{name}lim": (low, high)})
    if ticks.log:
        axis.set_ticks(*ticks.decades(), parse_math=False)
        axis.set_ticks([], minor=True)
    elif not ticks.free:
        texts = ["\n".join(lines) for lines in ticks.lines]
        axis.set_ticks(range(len(texts)), texts, parse_math=False)


class _Picture:
    def __init__(self, study: Study, cells: pd.DataFrame) -> None:
        self.study, self.cells = study, cells
        self.plane = Plane.of(study)
        self.panels = list(self.plane.split(study, cells))[:MOST_PANELS]
        self.across = Ticks.of(study, cells, self.plane.across)
        self.down = Ticks.of(study, cells, self.plane.down)
        self.bounds = excess_range(study, cells)
        tall = max((len(lines) for lines in self.down.lines), default=1)
        each = max(ROW, 0.14 * tall + 0.06)
        self.row = POINTS_ROW if self.down.free else max(0.9 if self.plane.points else 0, each * len(self.down.texts))
        self.left = max(0.75, 0.068 * self.down.longest + 0.45)
        self.title = TITLE if self.plane.panels else 0.0
        room = (WIDTH - self.left - RIGHT - GAP) / 2 / max(1, len(self.across.texts))
        self.turned = bool(self.across.texts) and self.across.longest * 0.064 > room
        self.below = BELOW + (0.06 * self.across.longest if self.turned else 0)
        self.block = self.title + ABOVE + self.row + self.below

    def png(self) -> bytes:
        height = TOP + self.block * len(self.panels) + FOOT
        figure = Figure(figsize=(WIDTH, height), dpi=DPI)
        names = words.axis_names(self.study)
        half = (WIDTH - self.left - RIGHT - GAP) / 2
        image: Any = None
        for number, (values, cells) in enumerate(self.panels):
            top = height - TOP - number * self.block
            if self.title:
                figure.text(
                    0.08 / WIDTH, (top - 0.03) / height, words.combination(names, values), fontsize=9, va="top",
                    fontweight="bold", parse_math=False,
                )  # fmt: skip
            for side in (0, 1):
                left = self.left + side * (half + GAP)
                bottom = top - self.title - ABOVE - self.row
                axes = figure.add_axes((left / WIDTH, bottom / height, half / WIDTH, self.row / height))
                found = self._draw(axes, records(cells), side)
                image = found if side == 1 else image
        if image is not None:
            self._bar(figure, image, height)
        self._legend(figure, height)
        return png_file(figure)

    def _draw(self, axes: Axes, cells: list[dict[str, Any]], side: int) -> Any:
        axes.set_title(("outcome", f"median {words.loss_name(self.study)}")[side], fontsize=8, loc="left", pad=4)
        image = (self._points if self.plane.points else self._map)(axes, cells, side)
        axes.set_xlabel(self.across.title, fontsize=8, parse_math=False)
        axes.tick_params(labelsize=7.5, length=2 if self.plane.points else 0)
        set_axis(axes, "x", self.across)
        set_axis(axes, "y", self.down)
        if self.turned:
            axes.tick_params(axis="x", labelrotation=90)
        if side == 0:
            axes.set_ylabel(self.down.title, fontsize=8, parse_math=False)
        else:
            axes.tick_params(labelleft=False)
        for spine in axes.spines.values():
            spine.set_visible(self.plane.points)
            spine.set_linewidth(0.5)
        return image

    def _map(self, axes: Axes, cells: list[dict[str, Any]], side: int) -> Any:
        shape = (len(self.down.texts), len(self.across.texts))
        numbers = np.full(shape, np.nan)
        order = list(MARKS)
        size = 7.5 if shape[1] <= 9 else 6 if shape[1] <= MOST_NUMBERS else 4.5
        axes.set_facecolor("#f1f1f1")
        for cell in cells:
            place = int(self.down.at(cell, self.plane.down)), int(self.across.at(cell, self.plane.across))
            text, ink = code(cell), MARKS[state(cell)].ink
            if side == 0:
                numbers[place] = order.index(state(cell))
            elif cell["finished"]:
                numbers[place] = log_excess(cell["median_excess"], self.bounds)
                share = (numbers[place] - self.bounds[0]) / (self.bounds[1] - self.bounds[0])
                text = words.excess(cell["median_excess"]) if shape[1] <= MOST_NUMBERS else ""
                ink = "#ffffff" if share < 0.5 else "#000000"
            else:
                continue
            axes.text(place[1], place[0], text, ha="center", va="center", fontsize=size, color=ink)
        if side == 0:
            colours = ListedColormap([mark.colour for mark in MARKS.values()])
            image = axes.imshow(numbers, cmap=colours, vmin=-0.5, vmax=len(order) - 0.5, aspect="auto")
        else:
            image = axes.imshow(numbers, cmap="cividis", norm=Normalize(*self.bounds), aspect="auto")
        for edges, line in ((range(shape[1] + 1), axes.axvline), (range(shape[0] + 1), axes.axhline)):
            for edge in edges:
                line(edge - 0.5, color="#ffffff", linewidth=1.2)
        return image

    def _points(self, axes: Axes, cells: list[dict[str, Any]], side: int) -> Any:
        image = None
        axes.grid(color="#e6e6e6", linewidth=0.5)
        axes.set_axisbelow(True)
        for name, mark in MARKS.items():
            here = [cell for cell in cells if state(cell) == name]
            if not here or (side == 1 and not here[0]["finished"]):
                continue
            x = [self.across.at(cell, self.plane.across) for cell in here]
            y = [self.down.at(cell, self.plane.down) for cell in here]
            look: dict[str, Any] = {"color": mark.colour, "edgecolors": "#333333"}
            if side == 1:
                excess = log_excess([cell["median_excess"] for cell in here], self.bounds)
                look = {"c": excess, "cmap": "cividis", "norm": Normalize(*self.bounds), "edgecolors": "#333333"}
            drawn = axes.scatter(x, y, s=30, marker=mark.matplotlib_marker, linewidths=0.4, **look)
            image = drawn if side == 1 else image
        return image

    def _bar(self, figure: Figure, image: Any, height: float) -> None:
        tall = max(0.9, min(2.2, self.block - self.title - ABOVE))
        top = height - TOP - self.title - ABOVE
        place = ((WIDTH - RIGHT + 0.12) / WIDTH, (top - tall) / height, 0.11 / WIDTH, tall / height)
        bar = figure.colorbar(image, cax=figure.add_axes(place))
        values, texts = excess_ticks(self.study, self.bounds)
        bar.set_ticks(values, labels=texts)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.ax.set_title(self.study.task.unit, fontsize=7.5, loc="left", pad=4)
        bar.outline.set_visible(False)

    def _legend(self, figure: Figure, height: float) -> None:
        seen = [mark for name, mark in MARKS.items() if self.cells[name].any()]
        if self.plane.points:
            handles, labels = mark_handles(seen)
        else:
            handles = [Patch(facecolor=mark.colour, edgecolor="#999999", linewidth=0.4) for mark in seen]
            labels = [f"{mark.letter}  {mark.name.replace('_', ' ')}" for mark in seen]
        figure.legend(
            handles, labels, loc="lower left", ncols=len(seen), fontsize=7.5, frameon=False, handlelength=1.1,
            columnspacing=1.6, bbox_to_anchor=(0.04 / WIDTH, 0.26 / height),
        )  # fmt: skip
        count, replicates = int(self.cells["finished"].sum()), self.study.replicates
        each = "in turn" if isinstance(self.study.search, Boundary) else "a cell"
        figure.text(
            0.08 / WIDTH, 0.1 / height, f"{self.study.name}: {count} finished trials, {replicates} "
            f"replicate{'s' if replicates > 1 else ''} {each}; {words.loss_name(self.study)} at most the initial one",
            fontsize=7, color="#555555", parse_math=False,
        )  # fmt: skip
