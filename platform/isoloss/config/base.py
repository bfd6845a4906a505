"""A part: one frozen, validated piece of a study's declaration, and how its fields are reached by path."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

Positive = Annotated[int, Field(ge=1)]

Listed = BeforeValidator(lambda values: tuple(values) if isinstance(values, list) else values)
"""Of a tuple's field: JSON has lists only."""


def is_name(text: str) -> bool:
    """Say whether a text can name a folder."""
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", text)) and ".." not in text


def _named(text: str) -> str:
    if not is_name(text):
        raise ValueError(
            f"a name must be 1 to 80 letters, digits, '.', '_' or '-', starting with a letter or digit and without "
            f"'..', since it names a folder; not {text!r}"
        )
    return text


Name = Annotated[str, AfterValidator(_named)]
"""A text that names a folder."""


class Part(BaseModel):
    """A frozen value with strictly typed fields; unknown fields and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @cached_property
    def canonical(self) -> dict[str, Any]:
        """The fields that differ from their defaults, and always ``kind``, as plain JSON values.

        Leaving defaults out is what lets a field be added, with its default, without changing any key.
        """
        out: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name == "kind" or field.is_required() or value != field.default:
                out[name] = plain(value)
        return out

    @property
    def label(self) -> str:
        """A short text for legends and tables: ``coverage(37.5, steps=300)``; a first, required field is bare."""
        bare = next((name for name in type(self).model_fields if name != "kind"), "")
        if bare and not type(self).model_fields[bare].is_required():
            bare = ""
        shown = {name: value_label(getattr(self, name)) for name in self.canonical if name != "kind"}
        kind = getattr(self, "kind", type(self).__name__.lower())
        return f"{kind}({', '.join(text if name == bare else f'{name}={text}' for name, text in shown.items())})"

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield (path, value) of every field, descending into parts."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Part):
                yield from value.leaves(f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value


def plain(value: Any) -> Any:
    """Return ``value`` as JSON values: parts become their canonical dictionaries, tuples become lists."""
    if isinstance(value, Part):
        return value.canonical
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical_json(value: Any) -> str:
    """Return the one JSON text of ``value``: canonical fields, sorted, without spaces."""
    return encode(plain(value))


def value_label(value: Any) -> str:
    """Return a short text for one value of an axis: numbers without trailing zeros, parts by their label."""
    if isinstance(value, Part):
        return value.label
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e7 else f"{value:.4g}"
    return str(value)


def replace(part: Part, path: str, value: Any) -> Part:
    """Return ``part`` with the field at ``path`` (names joined by dots) set to ``value``, validated.

    Raises LookupError when the path does not exist, ValueError when the field refuses the value; both say what
    would be accepted.
    """
    name, _, rest = path.partition(".")
    fields = type(part).model_fields
    if name == "kind" and not rest:
        raise LookupError(
            "'kind' cannot vary by itself: give whole parts, as in 'head': Choice(Linear(), LowRank(rank=8))"
        )
    if name not in fields:
        near = difflib.get_close_matches(name, fields, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        accepted = ", ".join(repr(field) for field in fields if field != "kind")
        raise LookupError(f"{type(part).__name__} has no field {name!r}{hint}; it has {accepted}")
    if rest:
        inner = getattr(part, name)
        if not isinstance(inner, Part):
            raise LookupError(f"{name!r} of {type(part).__name__} is a single value, so {rest!r} names nothing in it")
        value = replace(inner, rest, value)
    try:
        return type(part).model_validate({**{field: getattr(part, field) for field in fields}, name: value})
    except ValidationError as error:
        raise ValueError(messages(error)) from None


def messages(error: ValidationError) -> str:
    """Return a validation error as one line: each field, what was given, what would be accepted."""
    lines = []
    for item in error.errors(include_url=False):
        where = ".".join(str(step) for step in item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        given = item.get("input")
        shown = "" if item["type"] in ("value_error", "missing") else f", not {_short(given)}"
        lines.append(f"{where}: {text}{shown}" if where else f"{text}{shown}")
    return "; ".join(lines)


def _short(value: Any) -> str:
    text = value.label if isinstance(value, Part) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
