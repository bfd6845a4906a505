"""The map of a study in a terminal: outcome and median excess loss in letters and numbers, then findings in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from isoloss.analysis.sensitivity import sensitivity_table, why_not
from isoloss.analysis.surface import Plane, records, surface_table
from isoloss.config.search import Boundary
from isoloss.report import words
from isoloss.report.marks import IN_ASCII, MARKS, code, state
from isoloss.study import Study

if TYPE_CHECKING:
    from isoloss.analysis.boundary import Findings

BLANK = ""
GAP = 2


def terminal_map(
    study: Study,
    table: pd.DataFrame,
    console: Console,
    waiting: pd.DataFrame | None = None,
    found: Findings | None = None,
    paired: pd.DataFrame | None = None,
    ratios: pd.DataFrame | None = None,
) -> None:
    """Print the map of the finished trials (and of those that wait for a result), its legend, and what it says.

    Where a search scatters the trials, a column or row is a bin of its axis, headed by the bin's middle. ``found`` is
    what a boundary search found, ``paired`` compares arms, ``ratios`` are the tokens-to-loss ratios of a text.
    """
    _Printer(study, table, console, waiting, found, paired, ratios).print()


class _Printer:
    def __init__(
        self,
        study: Study,
        table: pd.DataFrame,
        console: Console,
        waiting: pd.DataFrame | None,
        found: Findings | None,
        paired: pd.DataFrame | None,
        ratios: pd.DataFrame | None,
    ) -> None:
        self.study, self.table, self.console, self.waiting, self.found = study, table, console, waiting, found
        self.paired, self.ratios = paired, ratios
        self.names = words.axis_names(study)
        self.plane = Plane.of(study)

    def print(self) -> None:
        if not len(self.table):
            self.say("No trial has finished yet, so there is no map to show.")
            return
        cells = self.cells()
        layout = _Layout.of(self, cells)
        for values, panel in self.plane.split(self.study, cells):
            if values:
                self.say(words.combination(self.names, values), style="bold")
            self.panel(panel, layout)
        self.legend(cells)
        self.findings()
        self.comparisons()
        self.tokens_to_loss()

    def cells(self) -> pd.DataFrame:
        if not self.plane.points:
            return surface_table(self.study, self.table, self.waiting)
        # Bins and folded axes put cells together, so that a place of the map counts trials, not replicates.
        waiting = None if self.waiting is None else words.binned(self.study, self.waiting, self.plane)
        kept = [path for path in self.study.axes if path not in self.plane.folded]
        return surface_table(self.study, words.binned(self.study, self.table, self.plane), waiting, kept)

    def panel(self, cells: pd.DataFrame, layout: _Layout) -> None:
        across = self.texts(cells, self.plane.across)
        found = {
            tuple(cell[path] if path else BLANK for path in (self.plane.down, self.plane.across)): cell
            for cell in records(cells)
        }
        columns = list(across)
        for start in range(0, len(columns), layout.at_once):
            part = columns[start : start + layout.at_once]
            table = Table(
                box=None,
                pad_edge=False,
                padding=(0, GAP, 0, 0),
                title=self.text(f"{self.names[self.plane.across]} →") if self.plane.across else None,
                title_justify="left",
                title_style="dim",
                header_style="bold",
            )
            name = self.names.get(self.plane.down or "", "")
            table.add_column(self.text(name), justify="right", width=layout.first, overflow="fold")
            for column in part:
                table.add_column(self.text(across[column]), width=layout.wide, overflow="fold")
            for row, text in self.texts(cells, self.plane.down).items():
                entries = [found.get((row, column)) for column in part]
                table.add_row(self.text(text), *(layout.entry(self, cell) if cell else "" for cell in entries))
            self.console.print(Padding(table, (0, 0, 1, 2)))

    def texts(self, cells: pd.DataFrame, path: str | None) -> dict[object, str]:
        return {BLANK: ""} if path is None else dict(words.texts_of(self.study, cells, path))

    def legend(self, cells: pd.DataFrame) -> None:
        line = Text()
        seen = [name for name in MARKS if cells[name].any()]
        for name in seen:
            mark = MARKS[name]
            line.append(mark.letter, style=mark.terminal)
            line.append(f" {name.replace('_', ' ')}   ")
        self.console.print(self.ascii(line))
        task = self.study.task
        number = f"median {words.loss_name(self.study)} in {task.unit_in_full}, at most the initial one"
        mixed = "; where trials disagree each letter has its count" if self.mixed(cells) else ""
        bins = "; scattered axes are in bins, headed by their middle" if self.plane.points else ""
        through = ", ".join(self.names[path] for path in self.plane.folded)
        folded = f"; seen through {through}" if through else ""
        self.say(f"Numbers: {number}{mixed}{bins}{folded}.", style="dim")

    @staticmethod
    def mixed(cells: pd.DataFrame) -> bool:
        return any(len(code(cell)) > 1 for cell in records(cells))

    def findings(self) -> None:
        if self.found is not None and isinstance(self.study.search, Boundary):
            self.boundary(self.found, self.study.search)
            return
        reason = why_not(self.study)
        if reason:
            self.say(f"Learning-rate sensitivity is not computed: {reason}.", style="dim")
            return
        table = sensitivity_table(self.study, self.table)
        self.console.print()
        for row in records(table):
            group = words.combination(self.names, {path: row[path] for path in self.study.axes if path in row})
            measured = words.sensitivity_in_words(self.study, row), words.best_in_words(self.study, row)
            says = "; ".join((words.range_in_words(row), *measured))
            self.say(f"{group}: {says}." if group else f"{says[0].upper()}{says[1:]}.")
        self.say(words.how_measured(self.study, table), style="dim")

    def comparisons(self) -> None:
        if self.paired is None or not len(self.paired):
            return
        self.console.print()
        for row in records(self.paired):
            group = words.combination(self.names, {path: row[path] for path in self.study.axes if path in row})
            self.say(f"{group + ': ' if group else ''}{words.difference_in_words(self.study, row)}.")
        self.say(words.how_paired(self.study), style="dim")

    def tokens_to_loss(self) -> None:
        if self.ratios is None or not len(self.ratios):
            return
        self.console.print()
        for row in records(self.ratios):
            group = words.combination(self.names, {path: row[path] for path in self.study.axes if path in row})
            self.say(f"{group + ': ' if group else ''}{words.ratio_in_words(self.study, row)}.")
        self.say(words.how_ratios_are_measured(self.ratios), style="dim")

    def boundary(self, found: Findings, search: Boundary) -> None:
        from isoloss.report import boundary_words

        self.console.print()
        if found.table is not None:
            for line in boundary_words.band_lines(self.study, found.table):
                self.say(line)
            self.say(boundary_words.how_read(), style="dim")
        self.say(boundary_words.summary(found, search))

    def say(self, text: str, style: str = "") -> None:
        self.console.print(self.text(text, style))

    def text(self, text: str, style: str = "") -> Text:
        return self.ascii(Text(text, style=style))

    def ascii(self, text: Text) -> Text:
        if self.console.options.ascii_only:
            text.plain = text.plain.translate(IN_ASCII)
        return text


@dataclass(frozen=True)
class _Layout:
    """Widths that all panels share: of the first column, of a cell, and of the code within it; cells may be stacked."""

    first: int
    wide: int
    code: int
    stacked: bool
    at_once: int

    @classmethod
    def of(cls, printer: _Printer, cells: pd.DataFrame) -> _Layout:
        rows = records(cells)
        across = printer.texts(cells, printer.plane.across).values()
        down = [*printer.texts(cells, printer.plane.down).values(), printer.names.get(printer.plane.down or "", "")]
        width = printer.console.width
        first = min(max(map(len, down)), max(12, width // 3))
        room = width - first - 2 * GAP
        head = min(max(map(len, across)), words.WRAP)
        letters = max(len(code(cell)) for cell in rows)
        number = max(len(words.excess(cell["median_excess"])) for cell in rows)
        wide = max(letters + 1 + number, head)
        stacked = len(across) * (wide + GAP) > room
        if stacked:
            wide = max(letters, number, head)
        return cls(first, wide, letters, stacked, max(1, room // (wide + GAP)))

    def entry(self, printer: _Printer, cell: Mapping[str, Any]) -> Text:
        number = words.excess(cell["median_excess"]) if cell["finished"] else ""
        text = f"{code(cell)}\n{number}" if self.stacked else f"{code(cell):<{self.code}} {number}"
        return printer.text(text, style=MARKS[state(cell)].terminal)
