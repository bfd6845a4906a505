"""What other thresholds change, in a terminal: how many trials, from which outcome to which, and the new map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoloss.analysis.surface import records
from isoloss.config.base import replace
from isoloss.config.search import Boundary
from isoloss.errors import IsolossError
from isoloss.report.marks import MARKS
from isoloss.run.ledger import Ledger
from isoloss.study import Study


def rejudged_facts(study: Study, now: Study, changes: pd.DataFrame) -> dict[str, Any]:
    """Return thresholds before and after, and the counts of ``rejudge.transitions``, as JSON values."""
    return {
        "study": study.name,
        "verdict": dict(study.verdict.leaves()),
        "rejudged": dict(now.verdict.leaves()),
        "trials": int(changes["trials"].sum()),
        "changed": int(changes.loc[changes["from"] != changes["to"], "trials"].sum()),
        "transitions": records(changes),
    }


def thresholds_in_words(study: Study, now: Study) -> str:
    """Return the thresholds that differ, such as ``converged_below 0.1 (the study: 0.05)``."""
    was = dict(study.verdict.leaves())
    texts = [
        f"{name} {value:g} (the study: {was[name]:g})" for name, value in now.verdict.leaves() if value != was[name]
    ]
    return ", ".join(texts) or "the study's own thresholds"


def print_rejudged(study: Study, now: Study, changes: pd.DataFrame, console: Console) -> None:
    """Print how many trials change their outcome, and a table of them: was down, is across."""
    facts = rejudged_facts(study, now, changes)
    thresholds = thresholds_in_words(study, now)
    console.print(
        Text(f"{facts['changed']} of {facts['trials']} finished trials change their outcome with {thresholds}.")
    )
    if isinstance(study.search, Boundary) and facts["changed"]:
        console.print(
            Text(
                "The search placed its trials, and stopped, by the study's own thresholds, not by these.", style="dim"
            ),
        )
    console.print()
    if facts["changed"]:
        console.print(_matrix(changes))
        console.print()


def _matrix(changes: pd.DataFrame) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("from ↓  to →")
    across = [name for name in MARKS if name in set(changes["to"])]
    for name in across:
        table.add_column(name, justify="right")
    count = {(row["from"], row["to"]): row["trials"] for row in records(changes)}
    for was in (name for name in MARKS if name in set(changes["from"])):
        table.add_row(was, *(str(count.get((was, name), "")) for name in across))
    return table


def write_rejudged(study: Study, now: Study, ledger: Ledger, folder: Path) -> list[Path]:
    """Write the report under other thresholds, which its question names; raises IsolossError when it cannot be."""
    from isoloss.report.write import write_report

    question = f"Judged again with {thresholds_in_words(study, now)}: {now.question}"
    labelled = replace(now, "question", question)
    assert isinstance(labelled, Study)
    try:
        return list(write_report(labelled, ledger, folder).files)
    except OSError as error:
        raise IsolossError(f"cannot write {folder}: {error.strerror}") from None
