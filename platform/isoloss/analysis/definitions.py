"""What two studies' definitions differ in, by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from isoloss.config.axes import Choice, Log, Span
from isoloss.config.base import Part, value_label
from isoloss.study import Study

ABSENT = "–"
"""What stands for a field that one of the two does not have."""


def differing(left: Study, right: Study) -> pd.DataFrame:
    """Return ``path``, ``left`` and ``right`` of each field in which two studies differ, defaults filled in.

    Name and question are left out; an axis is one field.
    """
    of_left, of_right = dict(_fields(left)), dict(_fields(right))
    rows = [
        {"path": path, "left": of_left.get(path, ABSENT), "right": of_right.get(path, ABSENT)}
        for path in dict.fromkeys((*of_left, *of_right))
        if of_left.get(path, ABSENT) != of_right.get(path, ABSENT) and path not in ("name", "question")
    ]
    return pd.DataFrame(rows, columns=["path", "left", "right"])


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of every field, descending into parts and mappings."""
    if isinstance(value, (Choice, Log, Span)):
        yield path, _axis(value)
    elif isinstance(value, (Part, Mapping)):
        inner = (
            value if isinstance(value, Mapping) else {name: getattr(value, name) for name in type(value).model_fields}
        )
        for name, item in inner.items():
            yield from _fields(item, f"{path}.{name}" if path else name)
    else:
        yield path, _text(value)


def _axis(axis: Choice | Log | Span) -> str:
    if isinstance(axis, Choice):
        return _text(axis.values)
    points = "" if axis.points is None else f", {axis.points} points"
    return f"{axis.kind} {axis.low:g} to {axis.high:g}{points}"


def _text(value: Any) -> str:
    return ", ".join(map(_text, value)) if isinstance(value, tuple) else value_label(value)
