"""All that a study measured as tidy tables, for any tool that reads tables: trials, curves, cells, every measure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from isoloss.analysis.measures import MEASURES, measure_tables
from isoloss.analysis.surface import surface_table, waiting_table
from isoloss.analysis.table import trials_table
from isoloss.config.search import Boundary
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.study import Study

BOUNDARY = "boundary"

DEFINITIONS = {
    "trials": "One row a finished trial: its cell, replicate and outcome, and its curve's summary. Losses are in the "
    "unit of the task: nats per scored token, of text bits per byte.",
    "curves": "One row an evaluation of a finished trial: its cell, replicate, step, scored tokens trained on, "
    "held-out loss and its standard error, and every series measured beside it; empty where there is none.",
    "surface": "One row a cell: how many replicates ended in each outcome, the most frequent one (of equally frequent "
    "ones the worst), and the median, lowest and highest excess loss, at most the initial one.",
    BOUNDARY: "Of a boundary search, the band of learning rates at which a share `level` of seeds converges, at each "
    "place of the other axes: its ends, the 90 % credible interval of each (`_from`, `_to`), the probability that an "
    "end is only a bound (`_bound`), and of no band at all (`closed`).",
}
"""What each table that is no measure holds."""


def definitions() -> dict[str, str]:
    """Return what every table of ``export_tables`` holds, by its name."""
    return {**DEFINITIONS, **{measure.name: measure.definition for measure in MEASURES}}


def export_tables(study: Study, ledger: Ledger) -> dict[str, pd.DataFrame]:
    """Return every table of a study by name, of an unfinished one as it stands; measures without a row are left out.

    Rows are in the same order whatever order the trials ran in.
    """
    trials = trials_table(study, ledger)
    tables = {
        "trials": trials,
        "curves": curves_table(study, ledger, trials),
        "surface": surface_table(study, trials, waiting_table(study, ledger)),
    }
    if isinstance(study.search, Boundary):
        # Optuna and scipy take a second to load: only these studies pay for them.
        from isoloss.analysis.boundary import findings

        found = findings(study, ledger)
        if found is not None and found.table is not None:
            tables[BOUNDARY] = found.table
    return {**tables, **measure_tables(study, trials, ledger.result)}


def curves_table(study: Study, ledger: Ledger, trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row a point of the curves of ``trials``: key, axes, replicate, step, tokens, loss, every series.

    ``tokens`` counts the scored tokens trained on, ``loss`` and ``standard_error`` are in the task's unit. A series
    that a trial does not have is NaN.
    """
    trained = {trial.key: trial for _, _, trial in members(study, ledger.claims())}
    about = ["key", *study.axes, "replicate"]
    frames = []
    for row, result in zip(trials[about].to_dict("records"), ledger.results(trials["key"]), strict=True):
        curve, trial = result.curve, trained[row["key"]]
        points: dict[str, Any] = {
            **row,
            "step": curve.step,
            "tokens": [trial.tokens(step) for step in curve.step],
            "loss": curve.loss,
            "standard_error": curve.standard_error,
            **{name: np.asarray(values, dtype=np.float64) for name, values in result.series.items()},
        }
        frames.append(pd.DataFrame(points))
    empty = pd.DataFrame(columns=[*about, "step", "tokens", "loss", "standard_error"])
    return pd.concat(frames, ignore_index=True) if frames else empty
