"""What a report infers instead of measuring, and what it lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from isoloss.analysis.measures import MEASURES
from isoloss.analysis.sensitivity import OVER_LOG, why_not
from isoloss.analysis.surface import WAITING
from isoloss.config.search import Boundary, Optuna, Random
from isoloss.report.bodies import said_list
from isoloss.report.page import Section
from isoloss.study import Study

FEWEST = 6
"""Below so many replicates there is no bootstrap interval at 95 %."""


def gaps_section(
    study: Study, cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame], given_up: Mapping[str, Mapping[str, str]]
) -> Section:
    """Return the section; ``given_up`` holds state and reason of each trial that a machine lost, by key."""
    return Section(
        "What is inferred, and what is missing",
        [
            "<h3>Inferred</h3>",
            said_list(inferred(study, cells, tables)),
            "<h3>Missing</h3>",
            said_list(missing(study, cells, tables, given_up)),
        ],
    )


def inferred(study: Study, cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return as sentences what numbers rest on beyond the trials themselves."""
    said = ["Every cell of the map and every curve is measured; all else on this page is computed from them."]
    if isinstance(study.search, Boundary):
        said.append(
            "The boundary's colours, lines and bands are inferred by two Gaussian processes, between the trials and "
            "beyond them; ranges beyond the two axes of a panel are held at one value. Their intervals are credible "
            "ones of that model, at 90 %."
        )
    sensitivity = tables.get("sensitivity")
    if sensitivity is not None and "method" in sensitivity:
        methods = sorted(set(sensitivity["method"]))
        between = " Between learning rates the loss is read as a straight line." if OVER_LOG in methods else ""
        said.append(f"Learning-rate sensitivity is computed by: {', '.join(methods)}.{between}")
        ends = [f"band_{end}_is_bound" for end in ("low", "high")]
        bounds = [int(sensitivity[end].sum()) for end in ends]
        said.append(
            f"Of {len(sensitivity)} bands of converging learning rates, {bounds[0]} lower and {bounds[1]} upper ends "
            "are only bounds: the range ends there, or the next learning rate has not finished."
        )
    return [*said, _replicates(study)] if tables or study.replicates == 1 else said


def _replicates(study: Study) -> str:
    if study.replicates == 1:
        return "There is one replicate of each cell: no number here has an interval for the seed."
    boot = f", and no bootstrap interval, which takes {FEWEST}" if study.replicates < FEWEST else ""
    return (
        f"Intervals over replicates are at 95 %, by Student's t over at most {study.replicates} replicates{boot}; "
        "they take the replicates' numbers as normal and independent."
    )


def missing(
    study: Study,
    cells: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    given_up: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """Return as sentences what is not there yet, or never will be."""
    said = []
    finished = int(cells["finished"].sum())
    counts = {name: int(cells[name].sum()) for name in (*WAITING, "missing")}
    if counts["missing"]:
        said.append(f"{_trials(counts['missing'])} of the cells shown not been tried.")
    if counts["pending"]:
        said.append(f"{_trials(counts['pending'])} been claimed and have no result yet.")
    for (state, reason), count in sorted(Counter((one["state"], one["reason"]) for one in given_up.values()).items()):
        said.append(f"{_trials(count)} been given up ({state.replace('_', ' ')}: {reason}); the next run tries again.")
    if isinstance(study.search, (Random, Optuna)):
        said.append(f"The search makes {study.search.cells * study.replicates:,} trials; {finished:,} are finished.")
    partial = int(((cells["finished"] > 0) & (cells["finished"] < study.replicates)).sum())
    if partial and not isinstance(study.search, Boundary):
        said.append(f"{partial:,} of {len(cells):,} cells have fewer than {study.replicates} finished replicates.")
    said += [f"{one.title}: {_why(study, one.name)}." for one in MEASURES if one.name not in tables]
    return said or ["Nothing: every trial of the study is finished, and every measure has its numbers."]


def _trials(count: int) -> str:
    return f"{count:,} trial has" if count == 1 else f"{count:,} trials have"


def _why(study: Study, name: str) -> str:
    reason = why_not(study) if name == "sensitivity" else ""
    return f"not computed, since {reason}" if reason else "the study's axes, or its finished trials, allow no number"
