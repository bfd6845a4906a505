"""How names, numbers and findings read in figures and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE, OVER_LOG
from isoloss.analysis.surface import Plane, axis_values, scattered
from isoloss.config.axes import Choice, Log
from isoloss.config.base import value_label
from isoloss.study import Study

BINS = 8
"""Into how many bins a scattered axis is cut where a table has to show it."""

WRAP = 31
"""Texts beside an axis are broken into lines of so many characters at most: enough for the field names of a part."""

PARTS_THAT_NAME = ("head", "model")


def printable(text: str) -> str:
    """Return ``text`` on one line, without control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def axis_names(study: Study) -> dict[str, str]:
    """Return a short name for each axis: ``optimizer.learning_rate`` reads ``learning rate``; clashes keep the path."""
    short = {path: _short(path) for path in study.axes}
    names = list(short.values())
    return {path: path if names.count(name) > 1 else name for path, name in short.items()}


def _short(path: str) -> str:
    first, *rest = path.split(".")
    words = [first, *rest] if first in PARTS_THAT_NAME else rest[-1:] or [first]
    return " ".join(words).replace("_", " ")


def loss_name(study: Study) -> str:
    """Return what a map's numbers are: the excess loss, or the loss itself where nobody knows the floor."""
    return "excess loss" if study.task.floor_known else "loss"


def excess(value: float) -> str:
    """Return an excess loss with the digits that a map has room for; a dash for NaN."""
    if math.isnan(value):
        return "–"
    if abs(value) >= 1e4:
        return f"{value:.0e}"
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3}f}"


def value_texts(values: Sequence[Any]) -> list[str]:
    """Return the texts of an axis's values, with as many digits as keep them apart."""
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        return [printable(value_label(value)) for value in values]
    if all(isinstance(value, int) for value in values):
        return [f"{value:,}" for value in values]
    small = min((abs(value) for value in values if value), default=1.0) < 0.01
    for digits in range(2 if small else 4, 17):
        texts = [_scientific(value, digits) if small else f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def _scientific(value: float, digits: int) -> str:
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}" if value else "0"


def texts_of(study: Study, frame: pd.DataFrame, path: str) -> dict[Any, str]:
    """Return the text of each value that an axis takes in a frame, in the order of the axis."""
    values = axis_values(study, path, frame)
    return dict(zip(values, value_texts(values), strict=True))


def value_text(path: str, value: Any) -> str:
    """Return the text of one value of an axis; learning rates always read as ``3.2e-4``."""
    if path == LEARNING_RATE and isinstance(value, float):
        return _scientific(value, 2)
    return value_texts([value])[0]


def combination(names: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return the values of some axes in words, such as ``vocab size 64, head rank 8``."""
    return ", ".join(f"{names[path]} {value_text(path, value)}" for path, value in values.items())


def edges(study: Study, path: str, count: int = BINS) -> list[float]:
    """Return the edges of equal bins over a range axis, in the logarithm where the axis is."""
    axis = study.axes[path]
    assert not isinstance(axis, Choice)
    return [axis.low, *(axis.at(i / count) for i in range(1, count)), axis.high]


def bin_of(value: float, borders: Sequence[float]) -> int:
    """Return which bin a value lies in; the outermost bins take what lies beyond."""
    return sum(value >= border for border in borders[1:-1])


def binned(study: Study, table: pd.DataFrame, plane: Plane) -> pd.DataFrame:
    """Return the rows with the scattered axes of the plane replaced by the middle of their bin."""
    table = table.copy()
    for path in (plane.across, plane.down):
        if path is not None and scattered(study, path) and len(table):
            borders = edges(study, path)
            middle = [
                math.sqrt(a * b) if isinstance(study.axes[path], Log) else (a + b) / 2
                for a, b in itertools.pairwise(borders)
            ]
            digits = next(i for i in range(3, 18) if len({f"{value:.{i}g}" for value in middle}) == len(middle))
            middle = [float(f"{value:.{digits}g}") for value in middle]
            table[path] = [middle[bin_of(value, borders)] for value in table[path]]
    return table


def range_in_words(row: Mapping[str, Any]) -> str:
    """Return the band of converging learning rates of one row of the sensitivity table, in words."""
    if row["band"] == "closed":
        return "no learning rate converges"
    if row["band"] == "unknown":
        return "no learning rate has converged yet"
    low, high = (value_text(LEARNING_RATE, row[end]) for end in ("band_low", "band_high"))
    text = f"converges at {low}" if row["band_low"] == row["band_high"] else f"converges from {low} to {high}"
    gaps = int(row["band_gaps"])
    if gaps:
        text += f", except {gaps} learning rate{'s' if gaps > 1 else ''} between"
    bounds = [end for end in ("low", "high") if row[f"band_{end}_is_bound"]]
    if bounds:
        which = {"low": "lower end is only a bound", "high": "upper end is only a bound"}
        text += f" ({'both ends are only bounds' if len(bounds) == 2 else which[bounds[0]]})"
    return text


def sensitivity_number(row: Mapping[str, Any]) -> str:
    """Return the learning-rate sensitivity of one row of the sensitivity table, with its spread."""
    number = excess(row["sensitivity"])
    decimals = len(number.partition(".")[2])
    return f"{number} ± {row['sensitivity_sd']:.{decimals}f}" if row["replicates"] > 1 else number


def sensitivity_in_words(study: Study, row: Mapping[str, Any]) -> str:
    """Return the learning-rate sensitivity of one row of the sensitivity table, in words."""
    count = int(row["replicates"])
    if not count:
        return "sensitivity not known yet"
    return f"sensitivity {sensitivity_number(row)} {study.task.unit} ({count} replicate{'s' if count > 1 else ''})"


def best_in_words(study: Study, row: Mapping[str, Any]) -> str:
    """Return the best learning rate of one row of the sensitivity table, with its excess loss."""
    rate = value_text(LEARNING_RATE, row["best_learning_rate"])
    return f"lowest {loss_name(study)} {excess(row['lowest_excess'])} at {rate}"


def ratio_in_words(study: Study, row: Mapping[str, Any]) -> str:
    """Return one row of the table of tokens-to-loss ratios in words."""
    down = study.map_axes[1]
    name = axis_names(study)[down]
    arm, reference = (f"{name} {value_text(down, row[which])}" for which in ("arm", "reference"))
    goal = f"{arm} reaches the final loss of {reference}"
    never = f"{row['censored']} of {row['replicates']} replicates never do"
    if math.isnan(row["ratio"]):
        return f"{goal} with at least {row['at_least']:.2g} of its training; {never}"
    spread = "" if math.isnan(row["low"]) else f" (95 %: {row['low']:.2g} to {row['high']:.2g})"
    return f"{goal} with {row['ratio']:.2g} of its training{spread}{f'; {never}' if row['censored'] else ''}"


def difference(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a paired difference and its 95 % interval as texts, a dash where there is none."""
    if math.isnan(row["difference"]):
        return "–", "–"
    decimals = 2 if math.isnan(row["low"]) else max(2, 1 - math.floor(math.log10(row["high"] - row["low"])))
    interval = "–" if math.isnan(row["low"]) else f"{row['low']:+.{decimals}f} to {row['high']:+.{decimals}f}"
    return f"{row['difference']:+.{decimals}f}", interval


def difference_in_words(study: Study, row: Mapping[str, Any]) -> str:
    """Return one row of the table of paired comparisons in words."""
    mean, interval = difference(row)
    spread = "" if interval == "–" else f" (95 %: {interval})"
    signs = f"higher in {row['higher']} of {row['pairs']} replicates"
    return f"{row['arm']} against {row['reference']}: {mean} {study.task.unit}{spread}, {signs}"


def how_paired(study: Study) -> str:
    """Return in words what a paired difference is."""
    return (
        f"Differences of final {loss_name(study)}, paired by replicate; each arm at its best learning rate, which a "
        "replicate takes from the others; intervals by Student's t, each for its arm alone; p by Holm over all arms."
    )


def how_ratios_are_measured(ratios: pd.DataFrame) -> str:
    """Return in words what a tokens-to-loss ratio is."""
    count, unit = ratios["replicates"].max(), ratios["unit"].iloc[0]
    replicates = (
        f"geometric mean of {count} paired replicates, interval by Student's t" if count > 1 else "one replicate"
    )
    return (
        f"Tokens-to-loss ratio: the {unit} that an arm has trained on when its held-out loss first reaches the final "
        "loss of the worst arm that learned anything, over all that the worst arm trained on; each arm at its own best "
        f"learning rate, the faster one in the midst of its schedule; {replicates}."
    )


def how_measured(study: Study, sensitivity: pd.DataFrame) -> str:
    """Return in words what the numbers of the sensitivity table mean."""
    if not len(sensitivity):
        return ""
    low = value_text(LEARNING_RATE, sensitivity["learning_rate_low"].min())
    high = value_text(LEARNING_RATE, sensitivity["learning_rate_high"].max())
    scatter = sensitivity["method"].iloc[0] == OVER_LOG
    mean = f"over the grid's {sensitivity['learning_rates'].max()} points"
    if scatter:
        mean = "by trapezoids in the logarithm, between the ends tried in each group"
    return (
        f"Learning-rate sensitivity (Wortsman et al. 2023): the mean of min(loss, loss at initialisation) above the "
        f"lowest loss, in {study.task.unit_in_full}, over learning rates from {low} to {high}, {mean}; mean ± standard "
        "deviation over the replicates that have finished at every learning rate. A learning rate converges when every "
        "replicate finished there does; an end of the band that is also the end of the range, or whose neighbour has "
        "not finished, is only a bound."
    )
