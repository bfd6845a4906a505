"""Outcome rules re-examined: a study under other thresholds, and the trials that they judge otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from isoloss.config.base import replace
from isoloss.errors import UsageError
from isoloss.outcome import Outcome
from isoloss.study import Study


def rejudged(study: Study, thresholds: Mapping[str, Any]) -> Study:
    """Return the study with some fields of its verdict changed; its trials and their keys stay the same.

    Raises UsageError for a field that the verdict does not have, and for a value that the field refuses; both say what
    would be accepted.
    """
    for field, value in thresholds.items():
        try:
            changed = replace(study, f"verdict.{field}", value)
        except (LookupError, ValueError) as error:
            raise UsageError(f"verdict: {error.args[0]}") from None
        assert isinstance(changed, Study)
        study = changed
    return study


def transitions(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Return how many ``trials`` went ``from`` one outcome ``to`` another, one row a pair that occurs.

    Both are tables of trials of the same ledger. Rows are in the order of ``Outcome``, unchanged outcomes included.
    """
    order = [str(outcome) for outcome in Outcome]
    judged = before[["key", "outcome"]].merge(after[["key", "outcome"]], on="key", suffixes=("_before", "_after"))
    counts = judged.groupby(["outcome_before", "outcome_after"]).size().to_dict()
    rows = [
        {"from": was, "to": now, "trials": int(counts[was, now])}
        for was in order
        for now in order
        if (was, now) in counts
    ]
    return pd.DataFrame(rows, columns=["from", "to", "trials"])
