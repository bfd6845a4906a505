"""What stands beside each figure on its page: facts in a line, a legend and notes in HTML, the figure in words."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import Plane, records, scattered, split
from isoloss.config.search import Boundary
from isoloss.outcome import Outcome
from isoloss.report import words
from isoloss.report.figures import MOST_PANELS
from isoloss.report.marks import MARKS, meanings
from isoloss.study import Study


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


def surface_body(
    study: Study,
    cells: pd.DataFrame,
    sensitivity: pd.DataFrame | None,
    reason: str,
    paired: pd.DataFrame,
    ratios: pd.DataFrame | None,
) -> str:
    """Return what stands below a surface: legend, notes, the learning-rate sensitivity or why none, comparisons."""
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
        f"{above_floor(study)}, at most its value at initialisation, which is also what a trial stopped before its "
        f"budget counts with{colours}."
    )
    panels = sum(1 for _ in split(study, cells, plane.panels))
    if panels > MOST_PANELS:
        said.append(f"The first {MOST_PANELS} of {panels} panels are drawn; surface.parquet holds all.")
    if isinstance(study.search, Boundary):
        said.append("The boundary that these trials imply is in boundary.html.")
    body = legend(study, cells, plane.points) + notes(said) + "<h2>Learning-rate sensitivity</h2>"
    body += notes([f"Not computed: {reason}."]) if sensitivity is None else sensitivity_body(study, sensitivity)
    if len(paired):
        body += paired_body(study, paired)
    return body if ratios is None or not len(ratios) else body + ratios_body(study, ratios)


def sensitivity_body(study: Study, sensitivity: pd.DataFrame) -> str:
    """Return the learning-rate sensitivity as a table, and what its numbers mean."""
    names = words.axis_names(study)
    groups = [path for path in study.axes if path != LEARNING_RATE]
    head = [*(names[path] for path in groups), "band", f"sensitivity ({study.task.unit})"]
    head += ["best learning rate", f"lowest {words.loss_name(study)}"]
    rows = []
    for row in records(sensitivity):
        texts = [*(words.value_text(path, row[path]) for path in groups), words.range_in_words(row)]
        texts += [words.sensitivity_number(row), words.value_text(LEARNING_RATE, row["best_learning_rate"])]
        rows.append([*texts, words.excess(row["lowest_excess"])])
    return table(head, rows) + notes([words.how_measured(study, sensitivity)])


def paired_body(study: Study, paired: pd.DataFrame) -> str:
    """Return the paired comparisons as a table, and what they mean."""
    names = words.axis_names(study)
    groups = [path for path in study.axes if path in paired]
    head = [*(names[path] for path in groups), "arm", f"difference ({study.task.unit})", "95 % interval", "d_z"]
    head += ["higher", "p (Holm)", "best learning rate"]
    rows = []
    for row in records(paired):
        texts = [*(words.value_text(path, row[path]) for path in groups), words.printable(row["arm"])]
        numbers = ["–" if row[name] != row[name] else f"{row[name]:.2g}" for name in ("d_z", "p_holm")]
        rate = "–" if row["learning_rate"] is None else words.value_text(LEARNING_RATE, row["learning_rate"])
        signs = f"{row['higher']} of {row['pairs']}"
        rows.append([*texts, *words.difference(row), numbers[0], signs, numbers[1], rate])
    reference = words.printable(paired["reference"].iloc[0])
    return f"<h2>Against {html.escape(reference)}</h2>" + table(head, rows) + notes([words.how_paired(study)])


def ratios_body(study: Study, ratios: pd.DataFrame) -> str:
    """Return the tokens-to-loss ratios as a table, and what they mean."""
    names = words.axis_names(study)
    down = study.map_axes[1]
    groups = [path for path in study.axes if path in ratios]
    head = [*(names[path] for path in groups), names[down], "against", "ratio", "95 % interval", "replicates there"]
    rows = []
    for row in records(ratios):
        texts = [words.value_text(path, row[path]) for path in groups]
        texts += [words.value_text(down, row["arm"]), words.value_text(down, row["reference"])]
        interval = "–" if row["low"] != row["low"] else f"{row['low']:.2g} to {row['high']:.2g}"
        ratio = "–" if row["ratio"] != row["ratio"] else f"{row['ratio']:.2g}"
        rows.append([*texts, ratio, interval, f"{row['reached']} of {row['replicates']}"])
    return "<h2>Tokens-to-loss ratio</h2>" + table(head, rows) + notes([words.how_ratios_are_measured(ratios)])


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in HTML."""
    titles = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in head)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def curves_body(study: Study, trials: pd.DataFrame, drawn: int) -> str:
    """Return what stands below the curves."""
    low = study.verdict.converged_below
    drawn_at = f", and an excess of {low / 100:g} or less is drawn at that" if study.task.floor_known else ""
    said = [
        f"{above_floor(study)}, in {study.task.unit_in_full}; the symbol at a curve's end is its outcome. "
        f"The dotted line is the convergence threshold, {low:g}. Both axes are logarithmic; step 0 stands left of 1"
        f"{drawn_at}. Click a learning rate to hide it."
    ]
    groups = tuple(path for path in study.axes if path != LEARNING_RATE and not scattered(study, path))
    panels = sum(1 for _ in split(study, trials, groups))
    within = [words.axis_names(study)[path] for path in study.axes if path not in (*groups, LEARNING_RATE)]
    if within:
        said.append(f"Curves of a panel also differ in {', '.join(within)}; point at one to see.")
    if drawn < len(trials):
        said.append(f"{drawn:,} of {len(trials):,} curves are drawn, those of the first replicates before others.")
    if panels > MOST_PANELS:
        said.append(f"The first {MOST_PANELS} of {panels} panels are drawn.")
    return states_legend(study, trials["outcome"], coloured=False) + notes(said)


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


def in_words(study: Study, cells: pd.DataFrame, sensitivity: pd.DataFrame | None) -> str:
    """Return a surface in words."""
    names = words.axis_names(study)
    plane = Plane.of(study)
    over = " and ".join(names[path] for path in (plane.across, plane.down) if path is not None) or "one cell"
    text = f"Outcome and median {words.loss_name(study)} over {over}: {facts(study, cells)}."
    for row in [] if sensitivity is None else records(sensitivity):
        group = words.combination(names, {path: row[path] for path in study.axes if path in row})
        text += f" {group + ': ' if group else ''}{words.range_in_words(row)}."
    return text
