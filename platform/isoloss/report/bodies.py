"""What the page shows of the map and of the curves: figures, legends, notes, and the map as a table."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import Plane, records, scattered, split
from isoloss.outcome import Curve, Outcome
from isoloss.report import words
from isoloss.report.curves import curves_figures
from isoloss.report.figures import MOST_PANELS, surface_figures
from isoloss.report.marks import MARKS, meanings, tally
from isoloss.report.page import Drawing, Section
from isoloss.report.tables import number, table, with_interval
from isoloss.report.thinning import MOST_POINTS
from isoloss.study import Study

MOST_CELLS = 200
"""So many cells stand in the map's table at most."""


def facts(study: Study, cells: pd.DataFrame) -> str:
    """Return how many trials are finished, and how they ended."""
    counts = {name: int(cells[name].sum()) for name in MARKS}
    total = sum(counts.values())
    parts = [f"{int(cells['finished'].sum())} of {total} trials finished" if total else "no trial yet"]
    parts += [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return "; ".join([parts[0], ", ".join(parts[1:])]) if parts[1:] else parts[0]


def legend(study: Study, cells: pd.DataFrame, points: bool, coloured: bool = True) -> str:
    """Return what the marks that appear mean, as a list; ``points`` shows symbols instead of letters."""
    says = meanings(study)
    items = []
    for name, mark in MARKS.items():
        if not cells[name].any():
            continue
        sign, colour, ink = mark.letter, mark.colour, mark.ink
        if points and mark.glyph:
            sign, colour, ink = mark.glyph, "#ffffff", mark.colour if coloured and name in set(Outcome) else "#333333"
        items.append(
            f'<li><span class="mark" style="background:{colour};color:{ink}">{sign}</span>'
            f"<b>{name.replace('_', ' ')}</b>: {html.escape(says[name])}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def map_section(study: Study, cells: pd.DataFrame) -> Section:
    """Return the map: its figures, legend and notes, and the same as a table."""
    plane = Plane.of(study)
    names = words.axis_names(study)
    said = []
    if plane.points:
        said.append(
            "Each point is a cell that the search tried; in both maps its symbol is its outcome, of several replicates "
            "the most frequent one, of equally frequent ones the worst."
        )
        if plane.folded:
            folded = ", ".join(names[path] for path in plane.folded)
            said.append(f"Points also differ in {folded}; point at one to see.")
    elif study.replicates > 1:
        said.append(
            f"A cell has {study.replicates} replicates: one letter where all of them agree, else each letter with its "
            "count; its colour is the most frequent outcome's, of equally frequent ones the worst's."
        )
    one_colour = f"; {study.verdict.converged_below / 10:g} {study.task.unit} and less are one colour"
    colours = one_colour if study.task.floor_known else ""
    said.append(
        f"{above_floor(study)}, in {study.task.unit_in_full}, at most its value at initialisation, which is also what "
        f"a trial stopped before its budget counts with{colours}. Nothing is drawn between cells that were trained."
    )
    panels = sum(1 for _ in split(study, cells, plane.panels))
    if panels > MOST_PANELS:
        said.append(f"The first {MOST_PANELS} of {panels} panels are drawn; surface.parquet holds all.")
    figures = [Drawing(one.to_plotly_json(), in_words(study, cells)) for one in surface_figures(study, cells)]
    return Section("Map", [*figures, legend(study, cells, plane.points), notes(said), cells_table(study, cells)])


def cells_table(study: Study, cells: pd.DataFrame) -> str:
    """Return the map as a table to unfold: each cell's outcomes, and its median loss with the range of replicates."""
    rows = records(cells)
    lines = [
        [*(words.value_text(path, cell[path]) for path in study.axes), tally(cell), _loss(cell)]
        for cell in rows[:MOST_CELLS]
    ]
    names = words.axis_names(study)
    head = [*(names[path] for path in study.axes), "replicates, and how they ended"]
    caption = f"Each cell of the map; median {words.loss_name(study)}, in brackets the range over its replicates"
    shown = table(caption, [*head, f"{words.loss_name(study)} ({study.task.unit})"], lines, max(1, len(study.axes)))
    rest = notes([f"The first {MOST_CELLS} of {len(rows):,} cells; surface.parquet holds all."])
    return f"<details><summary>The map as a table</summary>{shown}{rest if len(rows) > MOST_CELLS else ''}</details>"


def _loss(cell: Mapping[str, Any]) -> str:
    if cell["finished"] < 2:
        return number(cell["median_excess"])
    return with_interval(*(cell[f"{which}_excess"] for which in ("median", "lowest", "highest")))


def curves_section(study: Study, trials: pd.DataFrame, curves: Mapping[str, Curve]) -> Section:
    """Return the learning curves of the trials in ``curves``, by key: figures, legend and notes."""
    shown = trials[trials["key"].isin(list(curves))]
    low = study.verdict.converged_below
    drawn_at = f", and an excess of {low / 100:g} or less is drawn at that" if study.task.floor_known else ""
    said = [
        f"{above_floor(study)}, in {study.task.unit_in_full}; the symbol at a curve's end is its outcome. "
        f"The dotted line is the convergence threshold, {low:g}. Both axes are logarithmic; step 0 stands left of 1"
        f"{drawn_at}. Learning rates differ in colour and in the line's pattern; click one to hide it. A curve of more "
        f"than {MOST_POINTS} points is drawn through the lowest and the highest of even stretches of log step; "
        "`isoloss export` writes all."
    ]
    groups = tuple(path for path in study.axes if path != LEARNING_RATE and not scattered(study, path))
    panels = sum(1 for _ in split(study, trials, groups))
    within = [words.axis_names(study)[path] for path in study.axes if path not in (*groups, LEARNING_RATE)]
    if within:
        said.append(f"Curves of a panel also differ in {', '.join(within)}; point at one to see.")
    if len(shown) < len(trials):
        said.append(f"{len(shown):,} of {len(trials):,} curves are drawn, those of the first replicates before others.")
    if panels > MOST_PANELS:
        said.append(f"The first {MOST_PANELS} of {panels} panels are drawn.")
    alternative = (
        f"Learning curves: {words.loss_name(study)} over steps of {len(shown):,} trials, a panel for each group of "
        "cells; where they end is in the map's table."
    )
    figures = [Drawing(one, alternative) for one in curves_figures(study, shown, curves)]
    return Section("Learning curves", [*figures, states_legend(study, trials["outcome"], coloured=False), notes(said)])


def above_floor(study: Study) -> str:
    """Return what the loss in maps is, in words."""
    if study.task.floor_known:
        return "Excess loss is held-out loss above the task's floor"
    return "Loss is held-out loss, whose floor nobody knows"


def states_legend(study: Study, states: Iterable[str], coloured: bool = True) -> str:
    """Return the legend of the marks of trials in these states, as symbols."""
    counts = Counter(states)
    return legend(study, pd.DataFrame({name: [counts[name]] for name in MARKS}), points=True, coloured=coloured)


def notes(texts: Iterable[str]) -> str:
    """Return paragraphs of small print."""
    return "".join(f'<p class="note">{html.escape(text)}</p>' for text in texts)


def said_list(texts: Iterable[str]) -> str:
    """Return sentences as a list."""
    return f'<ul class="said">{"".join(f"<li>{html.escape(text)}</li>" for text in texts)}</ul>'


def in_words(study: Study, cells: pd.DataFrame) -> str:
    """Return a surface in words."""
    names = words.axis_names(study)
    plane = Plane.of(study)
    over = " and ".join(names[path] for path in (plane.across, plane.down) if path is not None) or "one cell"
    return (
        f"Outcome and median {words.loss_name(study)} over {over}: {facts(study, cells)}. The table below it holds "
        "each cell."
    )
