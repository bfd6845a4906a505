"""The figure of a boundary search as a still picture, for papers."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isoloss.analysis.boundary import LEVELS
from isoloss.config.search import Boundary
from isoloss.report import boundary_words
from isoloss.report.boundary_drawing import Drawing, Line, Panel
from isoloss.report.boundary_figure import ABOVE_ROW, CHANCE, INK, SHADE, heading, slots, volume_range, volume_ticks
from isoloss.report.marks import MARKS
from isoloss.report.picture import DPI, WIDTH, mark_handles, png_file, set_axis

RIGHT, BESIDE, GAP, ABOVE, BELOW, TOP = 0.14, 0.62, 1.5, 0.3, 0.52, 0.06
FREE_ROW, ROW, LEAST_ROW, MOST_ROW = 2.5, 0.3, 2.1, 3.6
SIZES = {"*": 46, "X": 25}
"""Sizes of marks that look smaller than others of the same size."""

LEGEND, LINE = 0.5, 0.14


def boundary_picture(drawn: Drawing) -> bytes:
    """Return the figure as a PNG file, the same to the byte for the same results."""
    return _Picture(drawn).png()


class _Picture:
    def __init__(self, drawn: Drawing) -> None:
        self.drawn = drawn
        self.slots = slots(drawn)
        rows = len(drawn.down.texts)
        self.row = FREE_ROW if drawn.down.free else min(MOST_ROW, max(LEAST_ROW, ROW * rows))
        self.left = max(0.75, 0.068 * drawn.down.longest + 0.45)
        right = BESIDE if drawn.found.table is None else RIGHT
        self.half = (WIDTH - self.left - right - GAP) / 2
        self.turned = bool(rows) and drawn.down.longest * 0.066 > self.half / rows
        self.block = ABOVE + self.row + BELOW + (0.06 * drawn.down.longest if self.turned else 0)
        search = drawn.study.search
        assert isinstance(search, Boundary)
        self.search = search
        self.notes = textwrap.wrap(self._note(), 150)

    def png(self) -> bytes:
        foot = LEGEND + LINE * len(self.notes)
        height = TOP + self.block * math.ceil(len(self.slots) / 2) + foot
        figure = Figure(figsize=(WIDTH, height), dpi=DPI)
        scaled: set[str] = set()
        for place, (kind, panel) in enumerate(self.slots):
            row, column = divmod(place, 2)
            left = self.left + column * (self.half + GAP)
            bottom = height - TOP - row * self.block - ABOVE - self.row
            axes = figure.add_axes((left / WIDTH, bottom / height, self.half / WIDTH, self.row / height))
            title = textwrap.shorten(heading(self.drawn, kind, panel), 58, placeholder=" …")
            axes.set_title(title, fontsize=8, loc="left", pad=4, parse_math=False)
            if place < 26:
                figure.text(
                    (left - 0.2) / WIDTH, (bottom + self.row + 0.055) / height, chr(ord("A") + place), fontsize=9.5,
                    fontweight="bold",
                )  # fmt: skip
            axes.tick_params(labelsize=7.5, length=2)
            for spine in axes.spines.values():
                spine.set_linewidth(0.5)
            image, label = getattr(self, f"_draw_{kind}")(axes, panel)
            if image is not None and kind not in scaled:  # all maps share the scale beside the first
                scaled.add(kind)
                self._bar(figure, image, label, left + self.half + 0.1, bottom, height)
        self._legend(figure, height, foot)
        return png_file(figure)

    def _bar(self, figure: Figure, image: Any, label: str, left: float, bottom: float, height: float) -> None:
        tall = min(1.7, self.row)
        place = (left / WIDTH, (bottom + self.row - tall) / height, 0.1 / WIDTH, tall / height)
        bar = figure.colorbar(image, cax=figure.add_axes(place))
        if label == "chance":
            bar.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "0.25", "0.5", "0.75", "1"])
        bar.ax.tick_params(labelsize=7, length=2)
        bar.ax.set_title(label, fontsize=7.5, loc="left", pad=4)
        bar.outline.set_visible(False)

    def _plane(self, axes: Axes) -> None:
        set_axis(axes, "x", self.drawn.across)
        set_axis(axes, "y", self.drawn.down)
        axes.set_xlabel(self.drawn.across.title, fontsize=8, parse_math=False)
        axes.set_ylabel(self.drawn.down.title, fontsize=8, parse_math=False)

    def _draw_map(self, axes: Axes, panel: Panel) -> tuple[Any, str]:
        self._plane(axes)
        scale = LinearSegmentedColormap.from_list("chance", CHANCE)
        drawn = self.drawn
        single = {"across": len(drawn.across_X) == 1, "down": len(drawn.down_Y) == 1}
        across_X = [-0.5, 0.5] if single["across"] else drawn.across_X
        down_Y = [-0.5, 0.5] if single["down"] else drawn.down_Y
        chance_YX = panel.chance_YX
        if single["across"]:
            chance_YX = chance_YX.repeat(2, axis=1)
        if single["down"]:
            chance_YX = chance_YX.repeat(2, axis=0)
        shading: Any = "nearest" if not drawn.ordered and not single["down"] else "gouraud"
        image = axes.pcolormesh(
            across_X, down_Y, chance_YX, cmap=scale, norm=Normalize(0, 1), shading=shading, rasterized=True
        )
        for line in panel.lines:
            solid = line.level == LEVELS[0]
            if solid:
                axes.fill_betweenx(line.down, line.low, line.high, color=INK, alpha=SHADE, linewidth=0)
            else:
                above = 0.0 if drawn.down.free else ABOVE_ROW
                axes.errorbar(
                    [line.across[i] for i in line.marks], [line.down[i] + above for i in line.marks],
                    xerr=_errors(line), color=INK, ls="", elinewidth=0.6, capsize=1.5, capthick=0.6,
                )  # fmt: skip
            axes.plot(line.across, line.down, color=INK, linewidth=1.3 if solid else 1.0, ls="-" if solid else "--")
        for name, mark in MARKS.items():
            here = [dot for dot in panel.dots if dot["state"] == name]
            if here:
                axes.scatter(
                    [dot["across"] for dot in here], [dot["down"] for dot in here], marker=mark.matplotlib_marker,
                    s=SIZES.get(mark.matplotlib_marker, 19), color=mark.colour if here[0]["finished"] else mark.ink,
                    edgecolors="#ffffff", linewidths=0.4, zorder=3,
                )  # fmt: skip
        return image, "chance"

    def _draw_band(self, axes: Axes, panel: Panel) -> tuple[Any, str]:
        set_axis(axes, "x", self.drawn.down)
        set_axis(axes, "y", self.drawn.across)
        axes.set_xlabel(self.drawn.down.title, fontsize=8, parse_math=False)
        axes.set_ylabel(self.drawn.across.title, fontsize=8, parse_math=False)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.5)
        axes.set_axisbelow(True)
        if self.turned:
            axes.tick_params(axis="x", labelrotation=90)
        for line in panel.lines:
            self._ends(axes, line)
        for place, probable in panel.closed:
            low, high = (place * 0.94, place * 1.06) if self.drawn.down.free else (place - 0.46, place + 0.46)
            axes.axvspan(low, high, color="#e4e4e4", linewidth=0, zorder=0.5)
            axes.text(
                place, 0.5, f"closed ({boundary_words.probability(probable)})", rotation=90, ha="center", va="center",
                fontsize=7.5, transform=axes.get_xaxis_transform(),
            )  # fmt: skip
        return None, ""

    def _ends(self, axes: Axes, line: Line) -> None:
        solid = line.level == LEVELS[0]
        shift = 0.0 if self.drawn.down.free else (-0.07 if solid else 0.07)
        down = [place + shift for place in line.down]
        if len(line.marks) > 1:
            axes.plot(down, line.across, color=INK, linewidth=1.3 if solid else 1.0, ls="-" if solid else "--")
        axes.errorbar(
            [down[i] for i in line.marks], [line.across[i] for i in line.marks], yerr=_errors(line), color=INK, ls="",
            elinewidth=1.0 if solid else 0.7, capsize=2, zorder=2.5,
        )  # fmt: skip
        outward = "^" if line.end == "highest" else "v"
        for bound in (False, True):
            here = [i for i in line.marks if line.is_bound[i] == bound]
            axes.plot(
                [down[i] for i in here], [line.across[i] for i in here], ls="", color=INK, markeredgewidth=0.9,
                marker=outward if bound else "o", markersize=6 if bound else 3.6, clip_on=False, zorder=3,
                markerfacecolor=INK if solid and not bound else "#ffffff",
            )  # fmt: skip

    def _draw_order(self, axes: Axes, panel: None) -> tuple[Any, str]:
        self._plane(axes)
        image = None
        for start, marker, size in ((False, "o", 19), (True, "D", 17)):
            here = [dot for dot in self.drawn.dots if dot["start"] == start]
            if here:
                image = axes.scatter(
                    [dot["across"] for dot in here], [dot["down"] for dot in here],
                    c=[dot["number"] + 1 for dot in here],
                    norm=Normalize(1, max(2, len(self.drawn.found.number))), cmap="viridis", s=size, marker=marker,
                    edgecolors="#333333", linewidths=0.4,
                )  # fmt: skip
        return image, "trial"

    def _draw_volume(self, axes: Axes, panel: None) -> tuple[Any, str]:
        checks = self.drawn.found.course.checks
        bounds = volume_range(self.drawn)
        ticks = volume_ticks(bounds)
        last = max([check.trials for check in checks], default=1)
        axes.set(yscale="log", ylim=[10**end for end in bounds], xlim=(0, 1.04 * last))
        axes.yaxis.set_ticks(ticks, [f"{one:g}" for one in ticks])
        axes.yaxis.set_ticks([], minor=True)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.plot([c.trials for c in checks], [c.error_volume for c in checks], "o-", color=INK, lw=1.2, ms=3.6)
        axes.axhline(self.search.tolerance, color="#C44E00", lw=1, ls="--")
        axes.annotate(
            f"tolerance {self.search.tolerance:g}", (0.02, self.search.tolerance), (0, -3),
            xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="top", fontsize=7, color="#8a3700",
        )  # fmt: skip
        axes.set_xlabel("finished trials", fontsize=8)
        axes.set_ylabel("share of the space", fontsize=8)
        return None, ""

    def _legend(self, figure: Figure, height: float, foot: float) -> None:
        states = {dot["state"] for dot in self.drawn.dots}
        handles, labels = mark_handles([mark for name, mark in MARKS.items() if name in states])
        drawn = self.drawn.found.table is not None
        if drawn:
            handles += [Line2D([], [], c=INK, lw=1.3), Line2D([], [], c=INK, lw=1, ls="--")]
            labels += ["edge for the median seed", f"edge for {boundary_words.MOST_SEEDS} of seeds"]
        handles.append(Line2D([], [], ls="", marker="D", c="#ffffff", mec="#333333", mew=0.6, ms=4))
        labels.append("even start (order)")
        figure.legend(
            handles, labels, loc="lower left", ncols=len(labels), fontsize=7.5, frameon=False, handlelength=1.6,
            columnspacing=1.3, handletextpad=0.5, bbox_to_anchor=(0.04 / WIDTH, (foot - LEGEND + 0.1) / height),
        )  # fmt: skip
        figure.text(
            0.08 / WIDTH, 0.08 / height, "\n".join(self.notes), fontsize=7, color="#555555", va="bottom",
            linespacing=1.25, parse_math=False,
        )  # fmt: skip

    def _note(self) -> str:
        study, found = self.drawn.study, self.drawn.found
        return (
            f"{study.name}: dots are {found.course.finished} finished trials; colours, lines and their 90% intervals "
            f"are inferred from them by two Gaussian processes. {boundary_words.summary(found, self.search)}"
        )


def _errors(line: Line) -> list[list[float]]:
    """Return how far the intervals of a line reach below and above it, at its marks."""
    return [[line.across[i] - line.low[i] for i in line.marks], [line.high[i] - line.across[i] for i in line.marks]]
