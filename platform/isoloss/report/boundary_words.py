"""What a boundary search found, in words: the band at each place, how sure it is, and why the search stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from isoloss.analysis.boundary import LEVELS, Findings, others_of
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import records
from isoloss.config.axes import Span
from isoloss.config.search import Boundary
from isoloss.report import words
from isoloss.report.course_words import share, why_stopped
from isoloss.study import Study

MOST_LINES = 40

STRETCHES = 0.25
"""From this probability on, it is said that a band may have more than one stretch."""

PROBABLY_CLOSED = 0.1
"""From this probability on, it is said of an open band that it may be closed."""

MOST_SEEDS = f"{LEVELS[1]:.0%}"


def probability(value: float) -> str:
    """Return a probability with two decimals, never as certain."""
    return "> 0.99" if value > 0.99 else "< 0.01" if value < 0.01 else f"{value:.2f}"


def pairs(table: pd.DataFrame, others: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], dict[float, dict[str, Any]]]]:
    """Yield (values of the other axes, the row of each level) of a boundary table, in its order."""
    rows = records(table)
    for start in range(0, len(rows), len(LEVELS)):
        levels = rows[start : start + len(LEVELS)]
        yield {path: levels[0][path] for path in others}, {row["level"]: row for row in levels}


def band_lines(study: Study, table: pd.DataFrame, most: int = MOST_LINES) -> list[str]:
    """Return one line for each combination of the other axes, and a last one where there are more than ``most``."""
    names = words.axis_names(study)
    unit = "" if isinstance(study.axes[LEARNING_RATE], Span) else " decades"
    found = [
        _line(words.combination(names, values), rows, unit)
        for values, rows in list(pairs(table, others_of(study)))[:most]
    ]
    hidden = len(table) // len(LEVELS) - most
    return [*found, f"… and {hidden} more; boundary.parquet holds all."] if hidden > 0 else found


def _line(group: str, rows: Mapping[float, Mapping[str, Any]], unit: str) -> str:
    text = "; ".join(phrases(rows, unit))
    return f"{group}: {text}." if group else f"{text[0].upper()}{text[1:]}."


def phrases(rows: Mapping[float, Mapping[str, Any]], unit: str = " decades") -> list[str]:
    """Return what is to be said of one band, given the row of each level: the ends, how sure they are, the fringe."""
    median, most = rows[LEVELS[0]], rows[LEVELS[1]]
    if median["closed"] > 0.5:
        return [f"closed (probability {probability(median['closed'])})"]
    said = [f"converges from {_with_interval(median, 'lowest')} to {_with_interval(median, 'highest')} in the median "
            "seed"]  # fmt: skip
    ends = [name for name in ("lowest", "highest") if median[f"{name}_is_bound"]]
    if len(ends) == 2:
        said.append("both ends only bounds: the band runs into the ends of the range")
    elif ends:
        which = "upper" if ends == ["highest"] else "lower"
        said.append(f"{which} end only a bound: the band runs into the end of the range")
    if median["closed"] >= PROBABLY_CLOSED:
        said.append(f"perhaps closed (probability {probability(median['closed'])})")
    if median["islands"] >= STRETCHES:
        said.append(f"more than one stretch (probability {probability(median['islands'])})")
    if most["closed"] > 0.5:
        return [*said, f"nowhere in {MOST_SEEDS} of seeds (probability {probability(most['closed'])})"]
    low, high = (words.value_text(LEARNING_RATE, most[name]) for name in ("lowest", "highest"))
    said.append(f"from {low} to {high} in {MOST_SEEDS} of seeds")
    return [*said, *_fringe(median, unit)]


def _with_interval(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (words.value_text(LEARNING_RATE, row[f"{name}{part}"]) for part in ("", "_from", "_to"))
    return f"{value} ({low} to {high})"


def _fringe(row: Mapping[str, Any], unit: str) -> list[str]:
    """Return the fringe of both ends; an end that is only a bound has none."""
    each = [share(row[f"{name}_fringe"]) for name in ("lowest", "highest")
            if not row[f"{name}_is_bound"] and not math.isnan(row[f"{name}_fringe"])]  # fmt: skip
    if not each:
        return []
    return [f"fringe {' and '.join(dict.fromkeys(each))}{unit}"]


def how_read() -> str:
    """Return what the numbers of the lines mean."""
    return (
        "Bands are inferred from all trials by two Gaussian processes; in brackets are 90% intervals. The median seed "
        f"converges where half of the seeds do; the fringe is the distance over which their share falls from "
        f"{MOST_SEEDS} to 10%."
    )


def summary(found: Findings, search: Boundary) -> str:
    """Return the share of the space expected to be wrong, and why the search stopped."""
    course = found.course
    stopped = "The search stopped: " if course.reason is not None else "When to stop is "
    return (
        f"{share(100 * found.known.error_volume)}% of the space is expected to be on the wrong side of the boundary. "
        f"{stopped}{why_stopped(course, search)}."
    )
