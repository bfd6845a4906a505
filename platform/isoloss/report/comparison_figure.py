"""The map of differences between two studies: how much higher the second ends, in each shared cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isoloss.analysis.compare import Comparison
from isoloss.analysis.surface import axis_values, records
from isoloss.report import words
from isoloss.report.comparison_words import headline, mark, names_of, panels, plane
from isoloss.report.figures import FONT, MOST_PANELS, WIDTH, safe

BLUE, WHITE, ORANGE = "#0b5394", "#f7f7f7", "#b45309"
SCALE = [[0.0, BLUE], [0.5, WHITE], [1.0, ORANGE]]
"""Blue where the second study ends lower, orange where it ends higher, which colour-blind readers keep apart."""

ROW, FRAME = 36, 100
LOGARITHMIC = 8
"""Numbers that span such a factor are spaced by their logarithm."""


def difference_figure(comparison: Comparison) -> go.Figure:
    """Return the map: a panel for each combination of the axes that are neither across nor down."""
    across, down, others = plane(comparison)
    cells, names = comparison.cells, names_of(comparison)
    shown = list(panels(comparison, cells, others))[:MOST_PANELS]
    columns = axis_values(comparison.study_of(across), across, cells)
    rows = axis_values(comparison.study_of(down), down, cells) if down else [None]
    titles = [safe(words.combination(names, values)) for values, _ in shown]
    height = len(shown) * (ROW * len(rows) + FRAME)
    figure = make_subplots(rows=len(shown), cols=1, subplot_titles=titles, vertical_spacing=FRAME * 0.8 / height)
    x, y = positions(columns), positions(rows) if down else [0.0]
    for number, (_, panel) in enumerate(shown, 1):
        found = {(row[across], row[down] if down else None): row for row in records(panel)}
        table = [[found.get((column, row)) for column in columns] for row in rows]
        figure.add_trace(
            go.Heatmap(
                x=x,
                y=y,
                z=[[None if cell is None else cell["difference"] for cell in line] for line in table],
                text=[["" if cell is None else mark(cell) for cell in line] for line in table],
                hovertext=[["" if cell is None else _hover(comparison, cell) for cell in line] for line in table],
                texttemplate="%{text}",
                hovertemplate="%{hovertext}<extra></extra>",
                hoverongaps=False,
                coloraxis="coloraxis",
                xgap=2,
                ygap=2,
            ),
            row=number,
            col=1,
        )
        figure.update_xaxes(_ticks(x, columns), title_text=safe(names[across]), row=number, col=1)
        figure.update_yaxes(_ticks(y, rows), title_text=safe(names[down]) if down else "", row=number, col=1)
    figure.update_yaxes(automargin=True, title_standoff=10)
    limit = colour_limit(cells["difference"].to_numpy())
    figure.update_layout(
        template="none",
        width=WIDTH,
        height=height,
        margin={"l": 60, "r": 90, "t": 40, "b": 60},
        font={"family": FONT, "size": 12, "color": "#222222"},
        plot_bgcolor="#ffffff",
        coloraxis={
            "colorscale": SCALE,
            "cmin": -limit,
            "cmax": limit,
            "colorbar": {
                "title": {"text": comparison.left.task.unit, "side": "right"},
                "thickness": 12,
                "len": 200,
                "lenmode": "pixels",
            },
        },
    )
    return figure


def colour_limit(differences: npt.NDArray[np.float64]) -> float:
    """Return the difference at which colours end: thrice the median size, so that few diverged cells hide no others."""
    sizes = np.abs(differences[differences != 0])
    return float(min(sizes.max(), 3 * np.median(sizes))) if len(sizes) else 1.0


def positions(values: Sequence[Any]) -> list[float]:
    """Return where an axis's values stand: numbers that span much at log10, others as they are, labels at 0, 1, 2."""
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        return [float(i) for i in range(len(values))]
    if min(values) > 0 and max(values) / min(values) >= LOGARITHMIC:
        return [math.log10(value) for value in values]
    return [float(value) for value in values]


def _ticks(places: Sequence[float], values: Sequence[Any]) -> dict[str, Any]:
    texts = [""] if list(values) == [None] else [safe(text) for text in words.value_texts(values)]
    return {"tickvals": list(places), "ticktext": texts, "zeroline": False, "showgrid": False}


def _hover(comparison: Comparison, row: dict[str, Any]) -> str:
    names, one, other = names_of(comparison), comparison.left.name, comparison.right.name
    lines = [f"{names[path]} = {words.value_text(path, row[path])}" for path in comparison.axes]
    lines += [
        f"{one}: {words.excess(row['left'])}, {row['left_outcome']}",
        f"{other}: {words.excess(row['right'])}, {row['right_outcome']}",
        f"difference {row['difference']:+.3g}",
    ]
    if not math.isnan(row["low"]):
        lines.append(f"95 %: {row['low']:+.3g} to {row['high']:+.3g}; p (Holm) {row['p_holm']:.2g}")
    return "<br>".join(map(safe, lines))


def in_words(comparison: Comparison) -> str:
    """Return what the map shows, for those who cannot see it."""
    return f"Map of differences, {headline(comparison)}. The table below has every number."
