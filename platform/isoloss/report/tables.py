"""Tables of a page: any measure's rows as text, each number with the interval that its columns hold."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.surface import records
from isoloss.report import words
from isoloss.study import Study

MOST_ROWS = 60

NONE = "–"
"""What stands where there is no number."""

EMPTY = (NONE, "unknown")
IDENTITY = ("replicate", "key")
"""Columns that name a row beside its axes."""

IN_NATS = (
    *("sensitivity", "sensitivity_sd", "lowest_excess", "difference", "loss", "excess", "irreducible"),
    *("best_loss", "best_excess"),
)
"""Columns in the unit of the study's loss."""

OF_RATES = ("band", "lowest", "highest", "fitted")
"""Columns whose intervals are of learning rates, beside those whose name ends in ``rate``."""

ENDS = (("_low", "_high"), ("_from", "_to"))
"""How columns name the ends of an interval of the column of their stem."""

HEADINGS = {
    **{"lowest": "lowest learning rate", "highest": "highest learning rate", "fitted": "learning rates fitted"},
    **{"d_z": "d_z", "p_holm": "p (Holm)", "r2": "r²"},
}
"""Headings that are not the column's name with spaces."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column as it is shown: its heading, and the text of a row."""

    heading: str
    text: Callable[[Row], str]


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], headers: int = 1) -> str:
    """Return a table in HTML that scrolls sideways; the first ``headers`` cells of a row are its headings."""
    titles = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in head)
    lines = []
    for row in rows:
        first = "".join(f'<th scope="row">{html.escape(text)}</th>' for text in row[:headers])
        rest = "".join(f"<td>{html.escape(text)}</td>" for text in row[headers:])
        lines.append(f"<tr>{first}{rest}</tr>")
    label = html.escape(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def measure_table(study: Study, frame: pd.DataFrame, title: str, file: str) -> str:
    """Return the rows of the measure ``title`` in HTML; ``file`` holds those beyond ``MOST_ROWS``.

    A column ``x`` with ``x_low`` and ``x_high``, or with ``low`` and ``high`` right after it, is one cell, as in
    ``0.123 (0.101 to 0.145)``. What is the same in every row is said once, below the table, in place of it when that is
    all. Rows without any number are left out, and rows of a probability stand in its order, the highest first.
    """
    names = words.axis_names(study)
    if "probability" in frame:
        frame = frame.sort_values("probability", ascending=False, kind="stable")
    rows = records(frame)
    axes = [path for path in study.axes if path in frame and frame[path].notna().any()]
    head = [Column(names[path], _of_axis(path)) for path in axes]
    others = columns(study, [str(name) for name in frame if name not in study.axes])
    texts = {column.heading: [column.text(row) for row in rows] for column in others}
    same = {heading: found[0] for heading, found in texts.items() if len(rows) > 1 and len(set(found)) == 1}
    shown = [*head, *(column for column in others if column.heading not in same)]
    numbers = [column for column in others if column.heading not in (*same, *IDENTITY)]
    told = [row for row in rows if any(column.text(row) not in EMPTY for column in numbers)]
    notes = []
    facts = {heading: text for heading, text in same.items() if text not in EMPTY}
    if facts:
        listed = "; ".join(f"{heading}: {text}" for heading, text in facts.items())
        notes.append(f"The same in all {len(rows):,} rows: {listed}.")
    if len(told) < len(rows) and (numbers or not facts.keys() - set(IDENTITY)):
        notes.append(f"{len(rows) - len(told):,} of {len(rows):,} rows have no number and are left out.")
    if len(told) > MOST_ROWS:
        notes.append(f"The first {MOST_ROWS} of {len(told):,} rows; {file} holds all.")
    lines = [[column.text(row) for column in shown] for row in told[:MOST_ROWS]]
    small = "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)
    if not lines:
        return small
    caption = f"{title} by {', '.join(names[path] for path in axes)}" if axes else title
    return table(caption, [column.heading for column in shown], lines, max(1, len(axes))) + small


def columns(study: Study, names: Sequence[str]) -> list[Column]:
    """Return how a table's columns are shown: intervals beside their number, headings in words with their unit."""
    shown, taken = [], set[str]()
    for i, name in enumerate(names):
        if name in taken:
            continue
        ends = _ends(names, i)
        stem = next((name.removesuffix(low) for low, high in ENDS if _starts_range(names, name, low, high)), None)
        if stem is not None:
            low, high = name, next(f"{stem}{high}" for low, high in ENDS if name == f"{stem}{low}")
            shown.append(Column(_heading(study, stem, "from, to"), _range(low, high, is_rate(stem))))
            taken.add(high)
        elif ends is not None:
            shown.append(Column(_heading(study, name), _with_interval(name, *ends)))
            taken.update(ends)
        else:
            shown.append(Column(_heading(study, name), _alone(name)))
    return shown


def _ends(names: Sequence[str], place: int) -> tuple[str, str] | None:
    """Return the columns that hold the interval of the one at ``place``, None where it has none."""
    name = names[place]
    for low, high in ENDS:
        if f"{name}{low}" in names and f"{name}{high}" in names:
            return f"{name}{low}", f"{name}{high}"
    return ("low", "high") if tuple(names[place + 1 : place + 3]) == ("low", "high") else None


def _starts_range(names: Sequence[str], name: str, low: str, high: str) -> bool:
    """Say whether a column is the low end of a range whose stem is no column itself."""
    stem = name.removesuffix(low)
    return stem != name and f"{stem}{high}" in names and stem not in names


def _heading(study: Study, name: str, what: str = "") -> str:
    stem = "" if name == "boot" else name.removesuffix("_boot")
    unit = study.task.unit if stem in IN_NATS else ""
    about = ", ".join(part for part in ("bootstrap 95 % interval" if name.endswith("boot") else what, unit) if part)
    text = HEADINGS.get(stem, stem.replace("_", " "))
    return f"{text} ({about})" if text and about else text or about


def _of_axis(path: str) -> Callable[[Row], str]:
    return lambda row: NONE if _missing(row[path]) else words.value_text(path, row[path])


def _with_interval(name: str, low: str, high: str) -> Callable[[Row], str]:
    return lambda row: with_interval(row[name], row[low], row[high], is_rate(name))


def _range(low: str, high: str, rate: bool) -> Callable[[Row], str]:
    return lambda row: interval(row[low], row[high], rate)


def _alone(name: str) -> Callable[[Row], str]:
    return lambda row: number(row[name], is_rate(name))


def is_rate(name: str) -> bool:
    """Say whether a column holds learning rates."""
    return name.endswith("rate") or name in OF_RATES


def with_interval(value: Any, low: float, high: float, rate: bool = False) -> str:
    """Return a number with its interval, and the number alone where it has none."""
    between = interval(low, high, rate, value)
    if between == NONE:
        return number(value, rate)
    decimals = None if rate else _decimals(low, high, value)
    return f"{number(value, rate, decimals)} ({between})"


def interval(low: float, high: float, rate: bool = False, value: Any = math.nan) -> str:
    """Return the ends of an interval with digits enough to tell them apart."""
    if _missing(low) and _missing(high):
        return NONE
    decimals = None if rate else _decimals(low, high, value)
    one, other = number(low, rate, decimals), number(high, rate, decimals)
    if _missing(high):
        return f"at least {one}"
    if _missing(low):
        return f"at most {other}"
    return f"{one} to {other}"


def number(value: Any, rate: bool = False, decimals: int | None = None) -> str:
    """Return a value with three significant digits, or so many decimals; texts and flags in words."""
    if _missing(value):
        return NONE
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return words.printable(str(value))
    if rate:
        return words.value_text(LEARNING_RATE, float(value))
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
        return f"{value:.2e}"
    if abs(value) >= 100 or value.is_integer():
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.3g}"


def _decimals(low: float, high: float, value: Any) -> int | None:
    """Return the decimals that show an interval: three significant digits, and two of its width."""
    ends = [abs(one) for one in (low, high, value) if isinstance(one, float) and math.isfinite(one) and one]
    if not ends or max(ends) >= 1e6 or max(ends) < 1e-3:
        return None
    digits = 2 - math.floor(math.log10(max(ends)))
    width = abs(high - low)
    if math.isfinite(width) and width > 0:
        digits = max(digits, 1 - math.floor(math.log10(width)))
    return min(max(digits, 0), 6)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
