"""The ``isoloss verdict``, ``compare`` and ``export`` commands: what a study's ledger says, asked in another way."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoloss.errors import UsageError
from isoloss.options import STATE, STUDY_OR_NAME, LedgerRoot, StateFolder, StudyOrName
from isoloss.output import AsJson, say

if TYPE_CHECKING:
    from rich.console import Console


class Format(StrEnum):
    parquet = "parquet"
    csv = "csv"


def verdict(
    study: StudyOrName,
    thresholds: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="A threshold of the verdict, as converged_below=0.1; repeatable."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the report under these thresholds here.")
    ] = None,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    as_json: AsJson = False,
) -> None:
    """Judge a study's curves again under other thresholds, without training: what changes, and the new map."""
    from isoloss.analysis.boundary import findings
    from isoloss.analysis.rejudge import rejudged, transitions
    from isoloss.analysis.surface import waiting_table
    from isoloss.analysis.table import trials_table
    from isoloss.config.search import Boundary
    from isoloss.report.rejudged import print_rejudged, rejudged_facts, write_rejudged
    from isoloss.report.terminal import terminal_map
    from isoloss.run.state import State

    found = State(state, ledgers=ledgers)
    definition, ledger = found.find(study)
    now = rejudged(definition, _assignments(thresholds))
    if out is not None and out.resolve() == found.report(definition.name).resolve():
        raise UsageError(f"--out: {out} holds the report under the study's own verdict; name another folder")
    before, after = trials_table(definition, ledger), trials_table(now, ledger)
    changes = transitions(before, after)
    files = write_rejudged(definition, now, ledger, out) if out is not None else []

    def text(shown: Console) -> None:
        print_rejudged(definition, now, changes, shown)
        known = findings(now, ledger) if isinstance(now.search, Boundary) else None
        terminal_map(now, after, shown, waiting_table(now, ledger), known)
        _print_report(shown, files)

    say({**rejudged_facts(definition, now, changes), "files": [str(path) for path in files]}, as_json, text)


def compare(
    left: Annotated[str, typer.Argument(metavar="A", help=STUDY_OR_NAME)],
    right: Annotated[str, typer.Argument(metavar="B", help="The study that is compared with it.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a page, compare.html, and the tables here.")
    ] = None,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    as_json: AsJson = False,
) -> None:
    """Lay two studies side by side: B less A, cell by cell, with intervals; outcomes, learning rates, boundaries."""
    from isoloss.analysis.compare import compared
    from isoloss.report.comparison import comparison_facts, print_comparison, write_comparison
    from isoloss.run.state import State

    found = State(state, ledgers=ledgers)
    comparison = compared(found.find(left), found.find(right))
    files = write_comparison(comparison, out) if out is not None else []

    def text(shown: Console) -> None:
        print_comparison(comparison, shown)
        _print_report(shown, files)

    say({**comparison_facts(comparison), "files": [str(path) for path in files]}, as_json, text)


def export(
    study: StudyOrName,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where; without it, exports/NAME in the state folder.")
    ] = None,
    format: Annotated[Format, typer.Option(help="Of the tables.")] = Format.parquet,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    as_json: AsJson = False,
) -> None:
    """Write all that a study measured as tidy tables: trials, curves, the map's cells, every measure."""
    from isoloss.report.export import export_study
    from isoloss.run.state import State

    found = State(state, ledgers=ledgers)
    definition, ledger = found.find(study)
    folder = found.folder / "exports" / definition.name if out is None else out
    written = export_study(definition, ledger, folder, format.value)
    facts = {"study": definition.name, "folder": str(folder), "tables": written}

    def text(shown: Console) -> None:
        for name, rows in written.items():
            shown.print(f"{folder / name}: {rows:,} rows", soft_wrap=True, markup=False)

    say(facts, as_json, text)


def _assignments(texts: list[str]) -> dict[str, Any]:
    """Return field and value of each ``field=value``; a value is JSON, such as a number, or else a text."""
    values: dict[str, Any] = {}
    for text in texts:
        field, equals, value = text.partition("=")
        if not equals or not field:
            raise UsageError(f"--set takes field=value, as in --set converged_below=0.1; not {text!r}")
        if field in values:
            raise UsageError(f"--set {field} is given twice")
        try:
            values[field] = json.loads(value)
        except ValueError:
            values[field] = value
    return values


def _print_report(shown: Console, files: list[Path]) -> None:
    if files:
        shown.print(f"report:  {files[0]}", soft_wrap=True, markup=False)
