"""The report of a study, written from its ledger: pages, a picture, and the tables behind them."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from isoloss.analysis.sensitivity import LEARNING_RATE, sensitivity_table, why_not
from isoloss.analysis.surface import Plane, records, scattered, split, surface_table, waiting_table
from isoloss.analysis.table import trials_table
from isoloss.outcome import Outcome
from isoloss.report import words
from isoloss.report.marks import MARKS, meanings
from isoloss.run.ledger import Ledger
from isoloss.study import Study


@dataclass(frozen=True)
class Written:
    """The files of a report. The sensitivity files are None when the study has no learning-rate sensitivity."""

    surface_html: Path
    surface_png: Path
    curves_html: Path
    trials: Path
    surface: Path
    sensitivity: Path | None
    sensitivity_csv: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that were written."""
        return tuple(path for path in vars(self).values() if path is not None)


def write_report(study: Study, ledger: Ledger, folder: Path) -> Written:
    """Write the report of a study, finished or not, into ``folder``; the same results give the same files, to the byte.

    Each file is written whole or not at all. Raises OSError when the folder cannot be written.
    """
    # Drawing libraries take a second to load: only a report pays for it.
    from isoloss.report.curves import MOST_CURVES, curves_figure
    from isoloss.report.figures import surface_figure
    from isoloss.report.page import page
    from isoloss.report.picture import message_picture, surface_picture

    folder.mkdir(parents=True, exist_ok=True)
    trials = trials_table(study, ledger)
    cells = surface_table(study, trials, waiting_table(study, ledger))
    reason = why_not(study)
    sensitivity = None if reason else sensitivity_table(study, trials)
    facts = _facts(study, cells)
    if len(trials):
        drawn = trials.head(MOST_CURVES)
        curves = {key: ledger.result(key).curve for key in drawn["key"]}
        surface_html = page(
            study.name, study.question, facts, _surface_body(study, cells, sensitivity, reason),
            surface_figure(study, cells), _in_words(study, cells, sensitivity),
        )  # fmt: skip
        curves_html = page(
            f"{study.name}: learning curves", study.question, facts, _curves_body(study, trials, len(drawn)),
            curves_figure(study, drawn, curves), f"Excess loss over steps of {len(drawn)} trials.",
        )  # fmt: skip
        picture = surface_picture(study, cells)
    else:
        nothing = "No trial has finished yet, so there is nothing to draw."
        body = f"<p>{nothing}</p>"
        surface_html = page(study.name, study.question, facts, body, None, "")
        curves_html = page(f"{study.name}: learning curves", study.question, facts, body, None, "")
        picture = message_picture(f"{study.name}: {nothing}")
    files = {
        "surface.html": surface_html.encode(),
        "surface.png": picture,
        "curves.html": curves_html.encode(),
        "trials.parquet": parquet(trials),
        "surface.parquet": parquet(cells),
    }
    if sensitivity is not None:
        files["sensitivity.parquet"] = parquet(sensitivity)
        files["sensitivity.csv"] = sensitivity.to_csv(index=False, lineterminator="\n").encode()
    for name, data in files.items():
        _write(folder / name, data)
    optional: dict[str, Path | None] = {}
    for name in ("sensitivity.parquet", "sensitivity.csv"):
        optional[name] = folder / name if name in files else None
        if name not in files:
            # What an earlier definition of the study left must not be taken for this one's.
            (folder / name).unlink(missing_ok=True)
    return Written(
        surface_html=folder / "surface.html",
        surface_png=folder / "surface.png",
        curves_html=folder / "curves.html",
        trials=folder / "trials.parquet",
        surface=folder / "surface.parquet",
        sensitivity=optional["sensitivity.parquet"],
        sensitivity_csv=optional["sensitivity.csv"],
    )


def parquet(table: pd.DataFrame) -> bytes:
    """Return a table as a Parquet file that depends on its values alone: no index, no timestamp, no pandas version."""
    columns = {
        # An axis may hold both numbers and labels; Parquet wants one type a column.
        name: column.map(str) if column.map(type).nunique() > 1 and str in set(column.map(type)) else column
        for name, column in table.items()
    }
    data = pa.Table.from_pandas(pd.DataFrame(columns, columns=table.columns), preserve_index=False)
    sink = pa.BufferOutputStream()
    pq.write_table(data.replace_schema_metadata(None), sink, compression="zstd", version="2.6", store_schema=False)
    return bytes(sink.getvalue())


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _facts(study: Study, cells: pd.DataFrame) -> str:
    counts = {name: int(cells[name].sum()) for name in MARKS}
    total = sum(counts.values())
    parts = [f"{int(cells['finished'].sum())} of {total} trials finished" if total else "no trial yet"]
    parts += [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return "; ".join([parts[0], ", ".join(parts[1:])]) if parts[1:] else parts[0]


def _legend(study: Study, cells: pd.DataFrame, points: bool, coloured: bool = True) -> str:
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


def _surface_body(study: Study, cells: pd.DataFrame, sensitivity: pd.DataFrame | None, reason: str) -> str:
    from isoloss.report.figures import MOST_PANELS

    plane = Plane.of(study)
    names = words.axis_names(study)
    notes = []
    if plane.points:
        notes.append(
            "Each point is a cell that the search tried; in both maps its symbol is its outcome, of several replicates "
            "the most frequent one, of equally frequent ones the worst."
        )
        if plane.folded:
            folded = ", ".join(names[path] for path in plane.folded)
            notes.append(f"Points also differ in {folded}; point at one to see.")
    elif study.replicates > 1:
        notes.append(
            f"A cell has {study.replicates} replicates: one letter where all of them agree, else each letter with its "
            "count; its colour is the most frequent outcome's, of equally frequent ones the worst's."
        )
    notes.append(
        "Excess loss is held-out loss above the task's floor, at most its value at initialisation, which is also what "
        "a trial stopped before its budget counts with; "
        f"{study.verdict.converged_below / 10:g} nats and less are one colour."
    )
    panels = sum(1 for _ in split(study, cells, plane.panels))
    if panels > MOST_PANELS:
        notes.append(f"The first {MOST_PANELS} of {panels} panels are drawn; surface.parquet holds all.")
    body = _legend(study, cells, plane.points) + _notes(notes) + "<h2>Learning-rate sensitivity</h2>"
    if sensitivity is None:
        return body + _notes([f"Not computed: {reason}."])
    groups = [path for path in study.axes if path != LEARNING_RATE]
    head = [*(names[path] for path in groups), "band", "sensitivity (nats)", "best learning rate", "lowest excess"]
    lines = []
    for row in records(sensitivity):
        texts = [*(words.value_text(path, row[path]) for path in groups), words.range_in_words(row)]
        texts += [words.sensitivity_number(row), words.value_text(LEARNING_RATE, row["best_learning_rate"])]
        lines.append("".join(f"<td>{html.escape(text)}</td>" for text in [*texts, words.excess(row["lowest_excess"])]))
    titles = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in head)
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
    return body + table + _notes([words.how_measured(study, sensitivity)])


def _curves_body(study: Study, trials: pd.DataFrame, drawn: int) -> str:
    from isoloss.report.figures import MOST_PANELS

    low = study.verdict.converged_below
    notes = [
        "Held-out loss above the task's floor, in nats per scored token; the symbol at a curve's end is its outcome. "
        f"The dotted line is the convergence threshold, {low:g}. Both axes are logarithmic; step 0 stands left of 1, "
        f"and an excess of {low / 100:g} or less is drawn at that. Click a learning rate to hide it."
    ]
    groups = tuple(path for path in study.axes if path != LEARNING_RATE and not scattered(study, path))
    panels = sum(1 for _ in split(study, trials, groups))
    within = [words.axis_names(study)[path] for path in study.axes if path not in (*groups, LEARNING_RATE)]
    if within:
        notes.append(f"Curves of a panel also differ in {', '.join(within)}; point at one to see.")
    if drawn < len(trials):
        notes.append(f"{drawn:,} of {len(trials):,} curves are drawn, those of the first replicates before others.")
    if panels > MOST_PANELS:
        notes.append(f"The first {MOST_PANELS} of {panels} panels are drawn.")
    counts = trials["outcome"].value_counts()
    cells = pd.DataFrame({name: [int(counts.get(name, 0))] for name in MARKS})
    return _legend(study, cells, points=True, coloured=False) + _notes(notes)


def _notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)


def _in_words(study: Study, cells: pd.DataFrame, sensitivity: pd.DataFrame | None) -> str:
    names = words.axis_names(study)
    plane = Plane.of(study)
    over = " and ".join(names[path] for path in (plane.across, plane.down) if path is not None) or "one cell"
    text = f"Outcome and median excess loss over {over}: {_facts(study, cells)}."
    for row in [] if sensitivity is None else records(sensitivity):
        group = words.combination(names, {path: row[path] for path in study.axes if path in row})
        text += f" {group + ': ' if group else ''}{words.range_in_words(row)}."
    return text
