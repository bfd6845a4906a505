"""The measures of a study: every table that follows from its finished trials, with what its numbers mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from isoloss.analysis import (
    best_rate,
    fitted_sensitivity,
    onset,
    paired,
    power_law,
    sensitivity,
    stable_range,
    tokens_to_loss,
)
from isoloss.result import Result
from isoloss.study import Study

ResultOf = Callable[[str], Result]
"""Reads the result of a finished trial, by its key."""

TableOf = Callable[[Study, pd.DataFrame, ResultOf], pd.DataFrame]


@dataclass(frozen=True)
class Measure:
    """One measure: ``name`` is that of its file, ``title`` its heading, ``definition`` says what its numbers mean."""

    name: str
    title: str
    definition: str
    table: TableOf


def _of_trials(table: Callable[[Study, pd.DataFrame], pd.DataFrame]) -> TableOf:
    return lambda study, trials, result_of: table(study, trials)


def _sensitivity(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame() if sensitivity.why_not(study) else sensitivity.sensitivity_table(study, trials)


def _tokens_to_loss(study: Study, trials: pd.DataFrame, result_of: ResultOf) -> pd.DataFrame:
    return tokens_to_loss.tokens_to_loss(study, trials, lambda key: result_of(key).curve)


MEASURES: tuple[Measure, ...] = (
    Measure(
        "sensitivity",
        "Learning-rate sensitivity",
        sensitivity.DEFINITION,
        _of_trials(_sensitivity),
    ),
    Measure(
        "fitted_sensitivity",
        "Learning-rate sensitivity, fitted",
        fitted_sensitivity.DEFINITION,
        _of_trials(fitted_sensitivity.fitted_sensitivity_table),
    ),
    Measure("best_rate", "Best learning rate", best_rate.DEFINITION, _of_trials(best_rate.best_rate_table)),
    Measure(
        "stable_range",
        "Range of learning rates that converge",
        stable_range.DEFINITION,
        _of_trials(stable_range.stable_range_table),
    ),
    Measure("paired", "Paired comparisons", paired.DEFINITION, _of_trials(paired.paired_table)),
    Measure("tokens_to_loss", "Tokens-to-loss ratios", tokens_to_loss.DEFINITION, _tokens_to_loss),
    Measure("power_law", "Power laws", power_law.DEFINITION, _of_trials(power_law.power_law_table)),
    Measure("onset", "Saturation onset", onset.DEFINITION, onset.onset_table),
)


def measure_tables(study: Study, trials: pd.DataFrame, result_of: ResultOf) -> dict[str, pd.DataFrame]:
    """Return the tables that have rows, by the measure's name, in the order of ``MEASURES``.

    ``trials`` is ``table.trials_table`` of the study, finished or not.
    """
    if not len(trials):
        return {}
    found = {measure.name: measure.table(study, trials, result_of) for measure in MEASURES}
    return {name: table for name, table in found.items() if len(table)}
