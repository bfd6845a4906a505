"""Two studies side by side in words and tables, which the terminal and the page both show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from isoloss.analysis import compare_bands, compare_cells, compare_rates
from isoloss.analysis.compare import Comparison
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import records, split
from isoloss.report import words
from isoloss.report.tables import number, with_interval

SURE = 0.05
"""Below this corrected p-value a difference is marked."""


@dataclass(frozen=True)
class Sheet:
    """One table: its heading, what its numbers are, its texts, and the name of the table that holds all rows."""

    title: str
    definition: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    file: str


def names_of(comparison: Comparison) -> dict[str, str]:
    """Return a short name of each axis of either study, in the order of ``axes``."""
    names = {**words.axis_names(comparison.right), **words.axis_names(comparison.left)}
    return {path: names[path] for path in comparison.axes}


def plane(comparison: Comparison) -> tuple[str, str | None, tuple[str, ...]]:
    """Return the axes across and down the map of differences, and those that tell its panels apart."""
    cells = comparison.cells
    varied = [path for path in comparison.axes if cells[path].nunique() > 1] or list(comparison.axes)
    across, down = comparison.left.map_axes
    across = across if across in varied else varied[0]
    if down not in varied or down == across:
        down = next((path for path in varied if path != across), "")
    return across, down or None, tuple(path for path in comparison.axes if path not in (across, down))


def panels(
    comparison: Comparison, cells: pd.DataFrame, paths: Sequence[str]
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield (values of the axes ``paths``, the cells there), in the order in which a study lists the values."""
    if not paths:
        yield {}, cells
        return
    for values, rows in split(comparison.study_of(paths[0]), cells, (paths[0],)):
        for more, found in panels(comparison, rows, paths[1:]):
            yield {**values, **more}, found


def is_sure(row: Mapping[str, Any]) -> bool:
    """Say whether a cell's difference is marked; one without a test is not."""
    return bool(row["p_holm"] < SURE)


def mark(row: Mapping[str, Any]) -> str:
    """Return a cell's difference for a map, starred where it is sure."""
    value = row["difference"]
    text = "0" if value == 0 else f"{value:+.2g}"
    return f"{text}*" if is_sure(row) else text


def headline(comparison: Comparison) -> str:
    """Return which studies are compared, and on what."""
    one, other = comparison.left.name, comparison.right.name
    return (
        f"{other} less {one}: {len(comparison.cells)} shared cells, of {comparison.finished[0]} finished trials of "
        f"{one} and {comparison.finished[1]} of {other}"
    )


def findings(comparison: Comparison) -> list[str]:
    """Return what the comparison says, in sentences."""
    said = (
        _of_cells(comparison)
        if len(comparison.cells)
        else ["No cell is finished in both studies: no losses to compare."]
    )
    if not len(comparison.groups):
        said.append("Learning rates are not compared: no replicate has finished at two or more that both studies list.")
    if comparison.bands is not None and not len(comparison.bands):
        said.append("Bands are not compared: the maps are tabled at no common place.")
    return said


def _of_cells(comparison: Comparison) -> list[str]:
    cells, one, other = comparison.cells, comparison.left, comparison.right
    if comparison.paired:
        said = [f"Replicates of one number are paired: both studies draw from seed {one.seed}."]
    else:
        said = [
            f"Replicates are not paired, since seeds {one.seed} and {other.seed} share no streams: Welch's intervals."
        ]
    sure = cells[cells["p_holm"] < SURE]
    higher, lower = int((sure["difference"] > 0).sum()), int((sure["difference"] < 0).sum())
    tested = int(cells["p"].notna().sum())
    said.append(
        f"{words.loss_name(one).capitalize()}: {other.name} ends higher in {higher} cells and lower in {lower} (p "
        f"below {SURE:g} by Holm over {tested} tested cells); {len(cells) - higher - lower} are undecided."
    )
    if not tested:
        said.append("No cell has an interval: it takes at least two replicates that differ.")
    same = int(cells["same_trials"].sum())
    if same:
        said.append(f"{same} trials are the same in both, by their key: there only machines or simulations differ.")
    said.append(f"{int(cells['changed'].sum())} of {len(cells)} cells change outcome.")
    return said


def sheets(comparison: Comparison) -> list[Sheet]:
    """Return the tables of a comparison that have rows."""
    found = [
        _differing(comparison),
        _outcomes(comparison),
        _sensitivity(comparison),
        _best(comparison),
    ]
    if comparison.bands is not None:
        found += [_bands(comparison, comparison.bands, end) for end in ("lowest", "highest")]
    return [sheet for sheet in found if sheet.rows]


def _differing(comparison: Comparison) -> Sheet:
    rows = [[row["path"], words.printable(row["left"]), words.printable(row["right"])]
            for row in records(comparison.differing)]  # fmt: skip
    says = "Fields of the two definitions, and of the machines of their first trials, that are not equal."
    return Sheet("What the studies differ in", says, ["field", *_both(comparison)], rows, "differing")


def _outcomes(comparison: Comparison) -> Sheet:
    names = names_of(comparison)
    rows = [
        [*(words.value_text(path, row[path]) for path in comparison.axes), row["left_outcome"], row["right_outcome"]]
        for row in records(comparison.cells)
        if row["changed"]
    ]
    head = [*(names[path] for path in comparison.axes), *_both(comparison)]
    says = "Cells whose most frequent outcome changes; each study judges by its own thresholds."
    return Sheet("Outcomes that change", says, head, rows, "cells")


def _sensitivity(comparison: Comparison) -> Sheet:
    head = [*_group_names(comparison), *_both(comparison), f"difference ({comparison.left.task.unit})"]
    rows = [[*group, *_measured(row, "sensitivity")] for group, row in _groups(comparison)]
    return Sheet("Learning-rate sensitivity", compare_rates.SENSITIVITY, head, rows, "groups")


def _best(comparison: Comparison) -> Sheet:
    one, other = _both(comparison)
    head = [*_group_names(comparison), one, other, f"difference ({comparison.left.task.unit})"]
    rows = [
        [
            *group,
            *_measured(row, "best"),
            *(words.value_text(LEARNING_RATE, row[f"{side}_best_rate"]) for side in ("left", "right")),
        ]
        for group, row in _groups(comparison)
    ]
    head += [f"best rate: {one}", other]
    return Sheet(f"Best {words.loss_name(comparison.left)}", compare_rates.BEST, head, rows, "groups")


def _group_names(comparison: Comparison) -> list[str]:
    return [name for path, name in names_of(comparison).items() if path != LEARNING_RATE]


def _groups(comparison: Comparison) -> Iterator[tuple[list[str], dict[str, Any]]]:
    for row in records(comparison.groups):
        yield [words.value_text(path, row[path]) for path in names_of(comparison) if path != LEARNING_RATE], row


def _measured(row: Mapping[str, Any], what: str) -> list[str]:
    between = with_interval(*(row[f"{what}_{column}"] for column in ("difference", "low", "high")))
    return [number(row[f"{what}_left"]), number(row[f"{what}_right"]), between]


def _bands(comparison: Comparison, bands: pd.DataFrame, end: str) -> Sheet:
    others = [path for path in comparison.left.axes if path != LEARNING_RATE]
    head = [*(names_of(comparison)[path] for path in others), "share of seeds", *_both(comparison), "decades (90 %)"]
    rows = []
    for row in records(bands):
        between = with_interval(*(row[f"{end}_{column}"] for column in ("difference", "from", "to")))
        rows.append(
            [
                *(words.value_text(path, row[path]) for path in others),
                f"{row['level']:.0%}",
                *(_rate(row[f"{end}_{side}"]) for side in ("left", "right")),
                f"{between}, only a bound" if row[f"{end}_is_bound"] else between,
            ]
        )
    return Sheet(f"{end.capitalize()} learning rate that converges", compare_bands.DEFINITION, head, rows, "bands")


def _rate(value: float) -> str:
    return "closed" if math.isnan(value) else words.value_text(LEARNING_RATE, value)


def _both(comparison: Comparison) -> list[str]:
    return [comparison.left.name, comparison.right.name]


def differences(comparison: Comparison) -> Sheet:
    """Return every shared cell with its losses, difference, interval and p-value."""
    names, unit = names_of(comparison), comparison.left.task.unit
    head = [
        *(names[path] for path in comparison.axes),
        *_both(comparison),
        f"difference ({unit})",
        "pairs" if comparison.paired else "replicates",
    ]
    rows = [
        [
            *(words.value_text(path, row[path]) for path in comparison.axes),
            *(number(row[name]) for name in ("left", "right")),
            with_interval(*(row[name] for name in ("difference", "low", "high"))),
            str(row["pairs"]) if comparison.paired else f"{row['left_finished']} and {row['right_finished']}",
            number(row["p_holm"]),
        ]
        for row in records(comparison.cells)
    ]
    title = f"Differences of {words.loss_name(comparison.left)}"
    return Sheet(title, compare_cells.DEFINITION, [*head, "p (Holm)"], rows, "cells")
