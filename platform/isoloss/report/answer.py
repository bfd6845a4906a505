"""The answer of a study in words: what its measures say of the question, each number with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import records
from isoloss.config.search import Boundary
from isoloss.report import boundary_words, words
from isoloss.report.tables import number, with_interval
from isoloss.study import Study

if TYPE_CHECKING:
    from isoloss.analysis.boundary import Findings

MOST_LINES = 6
"""With more rows than this, a measure is told by its extremes."""

MOST_NAMES = 8
SURE = 0.05

Rows = list[dict[str, Any]]


def answer(study: Study, cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame], found: Findings | None) -> list[str]:
    """Return the answer as sentences: the lowest loss, then what the search and each measure found."""
    said = [_lowest(study, cells)]
    if found is not None and isinstance(study.search, Boundary):
        said.append(boundary_words.summary(found, study.search))
        if found.table is not None:
            said += _spread(boundary_words.band_lines(study, found.table))
    for name, tell in TELL.items():
        if name in tables:
            said += tell(study, records(tables[name]))
    return said


def _lowest(study: Study, cells: pd.DataFrame) -> str:
    done = cells[cells["finished"] > 0]
    row = records(done.loc[[done["median_excess"].idxmin()]])[0]
    where = words.combination(words.axis_names(study), {path: row[path] for path in study.axes})
    low, high = (row[f"{end}est_excess"] for end in ("low", "high"))
    several = row["finished"] > 1
    loss = with_interval(row["median_excess"], low, high) if several else number(row["median_excess"])
    over = f"median and range of {row['finished']} replicates" if several else "one replicate"
    at = f", at {where}" if where else ""
    return f"The lowest {words.loss_name(study)} of a cell is {loss} {study.task.unit} ({over}){at}."


def _spread(lines: list[str]) -> list[str]:
    """Return at most ``MOST_LINES`` of the lines, evenly taken, the first and the last among them."""
    if len(lines) <= MOST_LINES:
        return lines
    kept = [round(i * (len(lines) - 1) / (MOST_LINES - 1)) for i in range(MOST_LINES)]
    return [*(lines[i] for i in kept), f"{len(lines) - MOST_LINES} more places are told below."]


def _sensitivities(study: Study, rows: Rows) -> list[str]:
    rows = [row for row in rows if not math.isnan(row["sensitivity"])]
    if len(rows) <= MOST_LINES:
        return [_sentence(study, row, _sensitivity(study, row)) for row in rows]
    rows.sort(key=lambda row: float(row["sensitivity"]))
    ends = zip(("least", "most"), (rows[0], rows[-1]), strict=True)
    return [f"The {which} sensitive is {_group(study, row)}: {_sensitivity(study, row)}." for which, row in ends]


def _sensitivity(study: Study, row: Mapping[str, Any]) -> str:
    low, high = (words.value_text(LEARNING_RATE, row[f"learning_rate_{end}"]) for end in ("low", "high"))
    text = _stated(row, "sensitivity")
    return f"learning-rate sensitivity {text} {study.task.unit} from {low} to {high}"


def _best_rates(study: Study, rows: Rows) -> list[str]:
    rows = [row for row in rows if not math.isnan(row["best_rate"])]
    if len(rows) <= MOST_LINES:
        return [_sentence(study, row, _best_rate(study, row)) for row in rows]
    rows.sort(key=lambda row: float(row["best_rate"]))
    ends = zip(("smallest", "largest"), (rows[0], rows[-1]), strict=True)
    return [f"The {which} best rate is that of {_group(study, row)}: {_best_rate(study, row)}." for which, row in ends]


def _best_rate(study: Study, row: Mapping[str, Any]) -> str:
    rate = _stated(row, "best_rate", rate=True)
    loss = _stated(row, "loss")
    bound = " (only a bound: it lies at the edge)" if row["at_edge"] else ""
    return f"best learning rate {rate}{bound}, {words.loss_name(study)} {loss} {study.task.unit} there"


def _stable_ranges(study: Study, rows: Rows) -> list[str]:
    if len(rows) <= MOST_LINES:
        return [_sentence(study, row, _stable_range(row)) for row in rows]
    opened = [row for row in rows if not row["closed"]]
    if not opened:
        return [f"In none of {len(rows)} groups does any learning rate converge."]
    row = max(opened, key=lambda row: float(row["highest"] / row["lowest"]))
    return [
        f"In {len(opened)} of {len(rows)} groups some learning rate converges in some replicate.",
        f"The widest range is that of {_group(study, row)}: {_stable_range(row)}.",
    ]


def _stable_range(row: Mapping[str, Any]) -> str:
    if row["closed"]:
        return "no learning rate converges"
    ends = []
    for name in ("lowest", "highest"):
        bound = ", only a bound" if row[f"{name}_is_bound"] else ""
        ends.append(_stated(row, name, rate=True) + bound)
    open_ = "" if row["open"] == row["replicates"] else f" in {row['open']} of {row['replicates']} replicates"
    return f"converges{open_} at learning rates from {ends[0]} to {ends[1]}"


def _laws(study: Study, rows: Rows) -> list[str]:
    names = words.axis_names(study)
    said = []
    for row in rows[:MOST_LINES]:
        exponent = _stated(row, "exponent")
        floor = _stated(row, "irreducible")
        group = _group(study, {path: value for path, value in row.items() if value == value})
        text = (
            f"{words.loss_name(study)} follows a power of {names[row['axis']]}: exponent {exponent}, irreducible "
            f"{floor} {study.task.unit}, r² {number(row['r2'])}"
        )
        said.append(f"{group}: {text}." if group else f"{text[0].upper()}{text[1:]}.")
    return said


def _onsets(study: Study, rows: Rows) -> list[str]:
    known = [row for row in rows if not math.isnan(row["probability"])]
    found = [row for row in known if row["probability"] > 0.5]
    if not known:
        return []
    said = f"Saturation is more likely than not in {len(found)} of {len(known)} trials"
    if not found:
        return [f"{said}."]
    first = min(found, key=lambda row: float(row["onset_step"]))
    step = with_interval(first["onset_step"], first["low"], first["high"])
    return [f"{said}; first in that of {_group(study, first)}, from step {step} on."]


def _differences(study: Study, rows: Rows) -> list[str]:
    if len(rows) <= MOST_LINES:
        return [
            f"{_arm(study, row)} against {words.printable(row['reference'])}: {_difference(row)} {study.task.unit}, "
            f"{_p(row)}."
            for row in rows
        ]
    sure = [row for row in rows if row["p_holm"] < SURE]
    said = []
    for which, found in (
        ("higher", sorted((row for row in sure if row["difference"] > 0), key=lambda row: -row["difference"])),
        ("lower", sorted((row for row in sure if row["difference"] < 0), key=lambda row: float(row["difference"]))),
    ):
        named = ", ".join(f"{_arm(study, row)} {_difference(row)}" for row in found[:MOST_NAMES])
        more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
        reference = words.printable(rows[0]["reference"])
        what = f"{words.loss_name(study)} than {reference} (p below {SURE:g} after Holm, {study.task.unit})"
        said.append(f"{which.capitalize()} {what}: {named + more if found else 'none'}.")
    return [*said, f"Not told apart from it: {len(rows) - len(sure)} of {len(rows)} comparisons."]


def _difference(row: Mapping[str, Any]) -> str:
    sign = "+" if row["difference"] > 0 else ""
    return f"{sign}{with_interval(row['difference'], row['low'], row['high'])}"


def _p(row: Mapping[str, Any]) -> str:
    return "no test" if math.isnan(row["p_holm"]) else f"p {number(row['p_holm'])} after Holm"


def _arm(study: Study, row: Mapping[str, Any]) -> str:
    group = _group(study, row)
    return f"{group}: {words.printable(row['arm'])}" if group else words.printable(row["arm"])


def _ratios(study: Study, rows: Rows) -> list[str]:
    if len(rows) <= MOST_LINES:
        return [_sentence(study, row, words.ratio_in_words(study, row)) for row in rows]
    known = sorted((row for row in rows if not math.isnan(row["ratio"])), key=lambda row: float(row["ratio"]))
    ends = zip(("fastest", "slowest"), (*known[:1], *known[1:][-1:]), strict=False)
    return [_sentence(study, row, f"{which}, {words.ratio_in_words(study, row)}") for which, row in ends]


def _stated(row: Mapping[str, Any], name: str, rate: bool = False) -> str:
    """Return a number with the interval in the columns beside it."""
    return with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"], rate)


def _sentence(study: Study, row: Mapping[str, Any], text: str) -> str:
    group = _group(study, row)
    return f"{group}: {text}." if group else f"{text[0].upper()}{text[1:]}."


def _group(study: Study, row: Mapping[str, Any]) -> str:
    return words.combination(words.axis_names(study), {path: row[path] for path in study.axes if path in row})


TELL: Mapping[str, Callable[[Study, Rows], list[str]]] = {
    "stable_range": _stable_ranges,
    "best_rate": _best_rates,
    "sensitivity": _sensitivities,
    "fitted_sensitivity": _sensitivities,
    "paired": _differences,
    "tokens_to_loss": _ratios,
    "power_law": _laws,
    "onset": _onsets,
}
"""How the rows of each measure are told, in the order of the answer."""
