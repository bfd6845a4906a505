"""The learning curves of a study: loss over steps, one panel a group of cells, coloured by learning rate."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from plotly.colors import sample_colorscale

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import axis_values, records, scattered, split
from isoloss.outcome import Curve
from isoloss.report import words
from isoloss.report.figures import BAR, FONT, MOST_PANELS, WIDTH, safe
from isoloss.report.marks import MARKS
from isoloss.report.thinning import thinned
from isoloss.study import Study

PANEL, TITLE, AXIS, GAP = 190, 38, 44, 22
LEFT, RIGHT = 64, 130
ROWS = 2
"""Rows of panels in one figure: what fits on a printed page."""

LOSSES = (0.5, 0.6, 0.7, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10)
"""Where the scale of a loss without a known floor is labelled."""

MOST_CURVES = 1500
"""So many curves are drawn at most, those of the first replicates; the page says so when there are more."""

START = 0.4
"""Where step 0, the loss at initialisation, is drawn on the logarithmic axis of steps; rounded, it reads 0."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Learning rates differ in their line's pattern, too, so that none is told by its colour alone."""


def curves_figures(study: Study, table: pd.DataFrame, curves: Mapping[str, Curve]) -> list[dict[str, Any]]:
    """Return the figures of the curves of the table's trials, by key, as plotly's JSON: ``ROWS`` of panels in each.

    Both axes are logarithmic. Step 0 is drawn at ``START``; an excess below a hundredth of the convergence threshold
    is drawn there, and one above ten times the largest initial excess is drawn at that. Where nobody knows the floor,
    the scale holds all losses up to 1.3 times the largest initial one.
    """
    return _Curves(study, table, curves).figures()


class _Curves:
    def __init__(self, study: Study, table: pd.DataFrame, curves: Mapping[str, Curve]) -> None:
        self.study, self.curves = study, curves
        self.names, self.loss = words.axis_names(study), words.loss_name(study)
        groups = tuple(path for path in study.axes if path != LEARNING_RATE and not scattered(study, path))
        shown = table[["key", *study.axes, "replicate", "outcome"]]
        self.panels = list(split(study, shown, groups))[:MOST_PANELS]
        highest = max((curve.initial_loss - curve.floor for curve in curves.values()), default=1.0)
        if study.task.floor_known:
            self.low, self.high = study.verdict.converged_below / 100, 10 * highest
            self.range = [math.log10(self.low) - 0.1, math.log10(self.high) - 0.7]
        else:
            lowest = min((min(curve.loss) for curve in curves.values()), default=highest)
            self.low, self.high = 0.95 * min(lowest, study.verdict.converged_below), 1.3 * highest
            self.range = [math.log10(self.low), math.log10(self.high)]
        self.last = max((curve.step[-1] for curve in curves.values()), default=1)
        self.entries = self._entries(table)

    def _entries(self, table: pd.DataFrame) -> dict[str, tuple[dict[str, Any], list[float]]]:
        """Return the entries of the legend: a text, its line, and the learning rates that it covers."""
        if LEARNING_RATE not in self.study.axes:
            return {"": ({"color": "#0072B2", "width": 1.3}, [])}
        rates = axis_values(self.study, LEARNING_RATE, table)
        if scattered(self.study, LEARNING_RATE):
            borders = words.edges(self.study, LEARNING_RATE)
            texts = words.value_texts(borders)
            named = [
                (f"{texts[i]} to {texts[i + 1]}", [rate for rate in rates if words.bin_of(rate, borders) == i])
                for i in range(len(borders) - 1)
            ]
        else:
            named = [(text, [rate]) for text, rate in zip(words.value_texts(rates), rates, strict=True)]
        # The scale's bright end vanishes on white paper.
        shades = sample_colorscale("Plasma", [0.88 * i / max(1, len(named) - 1) for i in range(len(named))])
        looks = [
            {"color": shade, "width": 1.3, "dash": dash} for shade, dash in zip(shades, itertools.cycle(DASHES))
        ]  # fmt: skip
        return {text: (look, found) for (text, found), look in zip(named, looks, strict=True) if found}

    def _columns(self) -> int:
        """How many panels stand side by side: the last axis's values where they fit, so that rows and columns align."""
        last = [list(values.values())[-1:] for values, _ in self.panels]
        different = sum(value not in last[:i] for i, value in enumerate(last))
        return different if 2 <= different <= 4 else min(3, len(self.panels))

    def figures(self) -> list[dict[str, Any]]:
        columns = self._columns()
        return [
            self._figure(self.panels[start : start + ROWS * columns], columns)
            for start in range(0, len(self.panels), ROWS * columns)
        ]

    def _figure(self, panels: list[tuple[dict[str, Any], pd.DataFrame]], columns: int) -> dict[str, Any]:
        height = math.ceil(len(panels) / columns) * (TITLE + PANEL + AXIS)
        layout: dict[str, Any] = {
            "width": WIDTH,
            "height": height + BAR + 4,
            "margin": {"l": LEFT, "r": RIGHT, "t": BAR, "b": 4},
            "font": {"family": FONT, "size": 12, "color": "#222222"},
            "hoverlabel": {"align": "left", "bgcolor": "#ffffff", "font": {"size": 12}},
            "legend": {
                "title": {"text": "learning rate" if LEARNING_RATE in self.study.axes else ""},
                "x": 1.01, "y": 1 - TITLE / height, "yanchor": "top", "traceorder": "normal",
            },
            "annotations": [],
            "shapes": [],
        }  # fmt: skip
        inner = WIDTH - LEFT - RIGHT
        wide = (inner - (columns - 1) * GAP) / columns
        shown: set[str] = set()
        traces: list[dict[str, Any]] = []
        for number, (values, rows_here) in enumerate(panels):
            row, column = divmod(number, columns)
            left, top = column * (wide + GAP) / inner, 1 - row * (TITLE + PANEL + AXIS) / height
            suffix = "" if number == 0 else str(number + 1)
            domain = [left, min(1.0, left + wide / inner)], [top - (TITLE + PANEL) / height, top - TITLE / height]
            layout |= self._axes(suffix, *domain, first=column == 0, bottom=number + columns >= len(panels))
            text = words.combination(self.names, values)
            layout["annotations"].append({
                "text": "<br>".join(safe(line) for line in _wrapped(text, int(wide / 6))), "x": left, "y": domain[1][1],
                "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False,
                "align": "left", "font": {"size": 12},
            })  # fmt: skip
            layout["shapes"].append({
                "type": "line", "x0": 0, "x1": 1, "xref": f"x{suffix} domain", "yref": f"y{suffix}",
                "y0": self.study.verdict.converged_below, "y1": self.study.verdict.converged_below,
                "line": {"dash": "dot", "width": 1, "color": "#555555"},
            })  # fmt: skip
            traces += self._traces(rows_here, shown, suffix)
        return {"data": traces, "layout": layout}

    def _axes(self, suffix: str, x: list[float], y: list[float], first: bool, bottom: bool) -> dict[str, Any]:
        decades = [10**i for i in range(math.floor(math.log10(self.last)) + 1)]
        look = {"zeroline": False, "gridcolor": "#ececec", "linecolor": "#999999", "showline": True, "type": "log"}
        marks: dict[str, Any] = {"dtick": 1, "tickformat": "~g"}
        if not self.study.task.floor_known:
            values = [value for value in LOSSES if self.low <= value <= self.high]
            marks = {"tickvals": values, "ticktext": [f"{value:g}" for value in values]}
        return {
            f"xaxis{suffix}": {
                **look, "domain": x, "anchor": f"y{suffix}", **({"matches": "x"} if suffix else {}),
                "range": [math.log10(START) - 0.08, math.log10(self.last) + 0.12],
                "tickvals": [START, *decades], "ticktext": ["0", *(f"{decade:,}" for decade in decades)],
                "title": {"text": "step (updates)" if bottom else "", "standoff": 4},
            },
            f"yaxis{suffix}": {
                **look, "domain": y, "anchor": f"x{suffix}", **({"matches": "y"} if suffix else {}),
                "range": self.range, "showticklabels": first, **marks,
                "title": {"text": f"{self.loss} ({self.study.task.unit})" if first else "", "standoff": 8},
            },
        }  # fmt: skip

    def _traces(self, rows: pd.DataFrame, shown: set[str], suffix: str) -> Iterator[dict[str, Any]]:
        for rank, (entry, (line, rates)) in enumerate(self.entries.items(), 1):
            for record in records(rows[rows[LEARNING_RATE].isin(rates)] if rates else rows):
                curve = self.curves[record["key"]]
                kept = thinned(curve)
                yield {
                    "type": "scatter", "xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "mode": "lines+markers",
                    "x": [curve.step[i] or START for i in kept],
                    "y": [self._drawn(curve.loss[i] - curve.floor) for i in kept],
                    "name": safe(entry), "legendgroup": entry, "showlegend": bool(entry) and entry not in shown,
                    "legendrank": rank,
                    "line": line,
                    "marker": {
                        "size": [0] * (len(kept) - 1) + [8], "symbol": MARKS[record["outcome"]].plotly_symbol,
                        "color": line["color"], "opacity": 1, "line": {"width": 0},
                    },
                    "hovertemplate": f"{self.loss} at step %{{x:,.0f}}: %{{y:.3g}}<br>{self._about(record)}"
                                     "<extra></extra>",
                }  # fmt: skip
                shown.add(entry)

    def _drawn(self, excess: float) -> float:
        return float(f"{min(max(excess, self.low), self.high):.4g}")

    def _about(self, record: Mapping[str, Any]) -> str:
        cell = words.combination(self.names, {path: record[path] for path in self.study.axes})
        about = (cell, f"replicate {record['replicate']}: {record['outcome']}, trial {record['key']}")
        # A percent sign and a brace would open one of plotly's own placeholders.
        return "<br>".join(safe(line).replace("%{", "% {") for text in about for line in textwrap.wrap(text, 70))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, max_lines=2, placeholder=" …") or [""]
