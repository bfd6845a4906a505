"""Documents as they are read: batches of some text, checked.

Shapes: N documents of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from isoloss.data.card import DataError

BATCH_BYTES = 1 << 20
MOST_BATCH_DOCUMENTS = 4096
MOST_DOCUMENT_BYTES = 64 << 20

NUMBERS = frozenset({"language_score", "score", "int_score"})
"""The columns of numbers; the others hold text."""


class DocumentBatch(NamedTuple):
    """Consecutive documents of a file, about BATCH_BYTES of text.

    ``first`` is the row of the first, counted from 0. ``texts_N`` are valid UTF-8. ``ids_N`` is empty where the
    file has none. ``columns`` has what else was asked for, N values or nulls each, as large strings or float64.
    """

    first: int
    texts_N: list[bytes]
    ids_N: list[str]
    columns: dict[str, pa.Array]


def at_row(uri: str, row: int) -> str:
    """Return the words for a place in a file."""
    return f"{uri}, row {row} (counted from 0)"


def decoded(text: bytes, where: str) -> str:
    """Return UTF-8 as text; raises DataError, saying where, when it is something else."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not valid UTF-8 ({error.reason} at byte {error.start}); convert it first") from None


def encoded(text: str, where: str) -> bytes:
    """Return text as UTF-8; raises DataError, saying where, when it has half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the character {text[error.start]!a} is half a surrogate pair, which UTF-8 cannot hold; "
            "repair or remove it"
        ) from None


def check_length(length: int, where: str) -> None:
    """Raise DataError, saying where, when a document has more than MOST_DOCUMENT_BYTES."""
    if length > MOST_DOCUMENT_BYTES:
        raise DataError(
            f"{where}: a document of more than {MOST_DOCUMENT_BYTES >> 20} MiB; cut it into shorter ones (a .txt file "
            "is cut at `separator`) or remove it"
        )


def missing(where: str, name: str, present: Iterable[str]) -> DataError:
    """Return the error for a column or field that is not there."""
    return DataError(f"{where}: no {name!r}; it has {', '.join(map(repr, present)) or 'nothing'}")
