"""The table of a study: one row a finished trial of its current definition, from the ledger alone."""

from __future__ import annotations

from typing import Any

import pandas as pd

from isoloss.config.base import canonical_json, value_label
from isoloss.config.tasks import Text
from isoloss.result import SERIES, TEXT_SERIES, Result
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.study import Study, Trial


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
        **_of_text(trial, result),
        **_of_probes(trial, result),
    }


def _of_text(trial: Trial, result: Result) -> dict[str, Any]:
    """Return what only a text has: the bytes of text trained on, where known, and its final losses in other units."""
    task = trial.task
    if not isinstance(task, Text):
        return {}
    losses = {name: result.series[name][-1] for name in TEXT_SERIES if name in result.series}
    if task.size is None or task.data.bytes is None:
        return losses  # simulated: nothing is trained on a corpus of unknown size
    return {"text_bytes": trial.tokens(result.curve.step[-1]) * task.data.bytes / task.size.tokens, **losses}


def _of_probes(trial: Trial, result: Result) -> dict[str, Any]:
    """Return what the trial's probes found at its last evaluation, by ``probe/`` and their names in results."""
    if trial.evaluation.probes is None:
        return {}
    names = (name for name in result.series if name not in (*SERIES, *TEXT_SERIES))
    return {f"probe/{name}": result.series[name][-1] for name in names}


def trials_table(study: Study, ledger: Ledger) -> pd.DataFrame:
    """Return the rows of every finished trial, ordered by cell and replicate: the same whatever order they ran in."""
    done = ledger.finished()
    finished = [(cell, trial) for _, cell, trial in members(study, ledger.claims()) if trial.key in done]
    results = ledger.results(trial.key for _, trial in finished)
    rows = [
        (canonical_json(cell), row(study, cell, trial, result))
        for (cell, trial), result in zip(finished, results, strict=True)
    ]
    rows.sort(key=lambda item: (item[1]["replicate"], item[0]))
    columns = None if rows else ["key", *study.axes, "replicate", "outcome"]
    return pd.DataFrame([item[1] for item in rows], columns=columns)
