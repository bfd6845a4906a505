"""Two studies side by side: printed in a terminal, as JSON values, and written as one page with its tables."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoloss.analysis.compare import Comparison
from isoloss.analysis.surface import axis_values, records
from isoloss.report import words
from isoloss.report.comparison_words import (
    Sheet,
    differences,
    findings,
    headline,
    mark,
    names_of,
    panels,
    plane,
    sheets,
)

if TYPE_CHECKING:
    from isoloss.report.page import Section

MANIFEST = "compare.json"
MOST_ROWS = 60


def comparison_facts(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON values, null for what is not known."""
    return {
        "left": comparison.left.name,
        "right": comparison.right.name,
        "axes": list(comparison.axes),
        "paired": comparison.paired,
        "finished": list(comparison.finished),
        "findings": findings(comparison),
        **{name: json.loads(table.to_json(orient="records", double_precision=15))
           for name, table in _tables(comparison).items()},
    }  # fmt: skip


def _tables(comparison: Comparison) -> dict[str, pd.DataFrame]:
    tables = {"differing": comparison.differing, "cells": comparison.cells, "groups": comparison.groups}
    return tables if comparison.bands is None else {**tables, "bands": comparison.bands}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the map of differences, what it says, and every table that has rows."""
    console.print(Text(headline(comparison), style="bold"))
    for line in findings(comparison):
        console.print(Text(line))
    shown = [*_maps(comparison), *sheets(comparison)]
    for sheet, after in itertools.zip_longest(shown, shown[1:]):
        console.print()
        console.print(Text(sheet.title, style="bold"))
        console.print(_printed(sheet))
        if sheet.definition and (after is None or after.definition != sheet.definition):
            console.print(Text(sheet.definition, style="dim"))


def _maps(comparison: Comparison) -> list[Sheet]:
    """Return the map of differences, a table a panel."""
    cells, names = comparison.cells, names_of(comparison)
    if not len(cells):
        return []
    across, down, others = plane(comparison)
    made = []
    for values, panel in panels(comparison, cells, others):
        columns = axis_values(comparison.study_of(across), across, panel)
        rows: list[Any] = axis_values(comparison.study_of(down), down, panel) if down else [None]
        found = {(row[across], row[down] if down else None): mark(row) for row in records(panel)}
        down_texts = words.value_texts(rows) if down else [""]
        made.append(
            Sheet(
                words.combination(names, values) or f"Differences of {words.loss_name(comparison.left)}",
                "",
                [f"{names[down] if down else ''} ↓ {names[across]} →", *words.value_texts(columns)],
                [
                    [text, *(found.get((c, row), "") for c in columns)]
                    for text, row in zip(down_texts, rows, strict=True)
                ],
                "cells",
            )
        )
    unit = comparison.left.task.unit_in_full
    made[-1] = dataclasses.replace(made[-1], definition=f"Mean differences in {unit}; * p below 0.05 by Holm.")
    return made


def _printed(sheet: Sheet) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in sheet.head:
        table.add_column(Text(heading), overflow="fold")
    for row in sheet.rows[:MOST_ROWS]:
        table.add_row(*map(Text, row))
    if len(sheet.rows) > MOST_ROWS:
        table.caption = f"the first {MOST_ROWS} of {len(sheet.rows)}"
    return table


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``compare.html``, a Parquet file a table, and ``compare.json``; all or none, the same to the byte.

    Raises what ``folder.write_folder`` raises.
    """
    from isoloss.report.folder import write_folder
    from isoloss.report.write import parquet

    files = {"compare.html": _page(comparison).encode()}
    files |= {f"{name}.parquet": parquet(table) for name, table in _tables(comparison).items()}
    return write_folder(folder, files, MANIFEST, comparison_facts(comparison))


def _page(comparison: Comparison) -> str:
    # Plotly takes a second to load: only a page pays for it.
    from isoloss.report.comparison_figure import colour_limit, difference_figure, in_words
    from isoloss.report.page import Drawing, Section, page

    one, other = comparison.left, comparison.right
    said = "".join(f"<li>{html.escape(line)}</li>" for line in findings(comparison))
    parts: list[str | Drawing] = [f'<ul class="said">{said}</ul>']
    sections = []
    if len(comparison.cells):
        limit = colour_limit(comparison.cells["difference"].to_numpy())
        parts.append(Drawing(difference_figure(comparison).to_plotly_json(), in_words(comparison)))
        parts.append(
            f'<p class="note">Blue: {html.escape(other.name)} ends lower; orange: it ends higher; from ±{limit:.2g} on '
            f"colours stay the same. Numbers are mean differences in {one.task.unit_in_full}; * p below 0.05 by Holm."
            "</p>"
        )
        sections = [_section(comparison, differences(comparison))]
    sections += [_section(comparison, sheet) for sheet in sheets(comparison)]
    question = f"How does {other.name} differ from {one.name}?"
    asked = f"{one.name}: {one.question} {other.name}: {other.question}"
    return page(
        f"{other.name} against {one.name}", question, f"{headline(comparison)}. {asked}",
        [Section("What was found", parts), *sections],
    )  # fmt: skip


def _section(comparison: Comparison, sheet: Sheet) -> Section:
    from isoloss.report.page import Section
    from isoloss.report.tables import table

    body = table(
        f"{sheet.title}: {comparison.left.name} and {comparison.right.name}", sheet.head, sheet.rows[:MOST_ROWS]
    )
    more = f" The first {MOST_ROWS} of {len(sheet.rows)} rows; {sheet.file}.parquet holds all."
    note = sheet.definition + (more if len(sheet.rows) > MOST_ROWS else "")
    return Section(sheet.title, [body, f'<p class="note">{html.escape(note)}</p>'])
