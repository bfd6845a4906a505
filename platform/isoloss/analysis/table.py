"""The table of a study: one row a finished trial of its current definition, from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from isoloss.config.base import canonical_json, value_label
from isoloss.config.search import Grid
from isoloss.result import Result
from isoloss.run.ledger import Claim, Ledger
from isoloss.study import Study, Trial


def members(study: Study, claims: list[Claim]) -> Iterator[tuple[Claim, dict[str, Any], Trial]]:
    """Yield (claim, cell, trial) of each claim that the study, as it is defined now, would itself make.

    A claim from an earlier definition (another budget, a dropped axis value) belongs to no cell and is left out.
    """
    grid = {trial.key: (cell, trial) for cell, trial in study.trials()} if isinstance(study.search, Grid) else None
    for claim in claims:
        found = grid.get(claim.key) if grid is not None else _resolve(study, claim)
        if found is not None:
            yield claim, *found


def _resolve(study: Study, claim: Claim) -> tuple[dict[str, Any], Trial] | None:
    if list(claim.cell) != list(study.axes):
        return None
    try:
        cell = study.cell(claim.cell)
        trial = study.trial(cell, claim.replicate)
    except (LookupError, ValueError):
        return None
    return (cell, trial) if trial.key == claim.key else None


def axis_value(value: Any) -> Any:
    """Return one value of an axis as tables hold it: numbers as they are, everything else as its label."""
    return value if isinstance(value, (int, float)) else value_label(value)


def row(study: Study, cell: dict[str, Any], trial: Trial, result: Result) -> dict[str, Any]:
    """Return one row: the cell, the outcome by the study's verdict, and the curve's summary."""
    curve = result.curve
    return {
        "key": trial.key,
        **{path: axis_value(value) for path, value in cell.items()},
        "replicate": trial.replicate,
        "outcome": str(study.verdict.judge(curve)),
        "final_excess": curve.final_excess,
        "capped_excess": curve.capped_excess,
        "final_loss": curve.final_loss,
        "standard_error": curve.standard_error[-1],
        "initial_loss": curve.initial_loss,
        "floor": curve.floor,
        "ended": curve.ended,
        "steps": curve.step[-1],
        "budget_steps": trial.steps,
        "batch_size": trial.batch_size,
        "draws_per_symbol": trial.draws_per_symbol(curve.step[-1]),
        "tokens": trial.tokens(curve.step[-1]),
        "parameters": trial.parameters,
    }


def trials_table(study: Study, ledger: Ledger) -> pd.DataFrame:
    """Return the rows of every finished trial, ordered by cell and replicate: the same whatever order they ran in."""
    done = ledger.finished()
    rows = [
        (canonical_json(cell), row(study, cell, trial, ledger.result(trial.key)))
        for _, cell, trial in members(study, ledger.claims())
        if trial.key in done
    ]
    rows.sort(key=lambda item: (item[1]["replicate"], item[0]))
    columns = None if rows else ["key", *study.axes, "replicate", "outcome"]
    return pd.DataFrame([item[1] for item in rows], columns=columns)
