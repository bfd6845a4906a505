"""Reading text: a JSON object a line, or documents between separators."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from isoloss.config.corpus import Files
from isoloss.data.card import DataError
from isoloss.data.documents import (
    BATCH_BYTES,
    MOST_BATCH_DOCUMENTS,
    MOST_DOCUMENT_BYTES,
    NUMBERS,
    DocumentBatch,
    at_row,
    check_length,
    decoded,
    encoded,
    missing,
)
from isoloss.data.sources import BUFFER_BYTES

TEXT, ID, NUMBER, STRING = (str,), (str, int), (float, int, type(None)), (str, type(None))
WORDS = {TEXT: "a text", ID: "a text or a whole number", NUMBER: "a number or null", STRING: "a text or null"}


class _Document(NamedTuple):
    text: bytes
    id: str | None
    values: list[str | float | None]


def json_lines(uri: str, stream: BinaryIO, source: Files, columns: Sequence[str]) -> Iterator[DocumentBatch]:
    """Yield the documents of a file with a JSON object a line; empty lines are skipped. Raises DataError or OSError."""
    lines = enumerate(iter(lambda: stream.readline(MOST_DOCUMENT_BYTES + 1), b""), 1)
    found = (_document(f"{uri}, line {n}", line, source, columns) for n, line in lines if line.strip())
    return _batches(found, columns)


def zipped_json_lines(uri: str, stream: BinaryIO, source: Files, columns: Sequence[str]) -> Iterator[DocumentBatch]:
    """As ``json_lines``, of a file compressed by gzip; raises EOFError or zlib.error where that is damaged."""
    with gzip.open(stream) as unzipped:
        yield from json_lines(uri, unzipped, source, columns)  # type: ignore[arg-type]


def text(uri: str, stream: BinaryIO, source: Files, columns: Sequence[str]) -> Iterator[DocumentBatch]:
    """Yield what lies between separators, less a newline at its end, and is not blank; raises DataError or OSError."""
    if columns:
        raise missing(f"{uri}: a .txt file has no columns, so", columns[0], ())
    return _batches((_Document(piece, None, []) for piece in _pieces(uri, stream, source.separator.encode())), ())


def _document(where: str, line: bytes, source: Files, columns: Sequence[str]) -> _Document:
    check_length(len(line), where)
    text = decoded(line, where)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f'{where}: must be an object such as {{"{source.text}": "…"}}, not {text.strip()[:40]}')
    content = encoded(_field(where, record, source.text, TEXT), f"{where}: {source.text!r}")
    name = str(_field(where, record, source.id, ID)) if source.id else None
    if name is not None:
        encoded(name, f"{where}: {source.id!r}")
    values = [_field(where, record, column, NUMBER if column in NUMBERS else STRING) for column in columns]
    return _Document(content, name, values)


def _field(where: str, record: dict[str, Any], name: str, accepted: tuple[type, ...]) -> Any:
    if name not in record:
        raise missing(where, name, record)
    value = record[name]
    if not isinstance(value, accepted) or isinstance(value, bool):
        raise DataError(f"{where}: {name!r} must be {WORDS[accepted]}, not {json.dumps(value)[:40]}")
    return value


def _pieces(uri: str, stream: BinaryIO, separator: bytes) -> Iterator[bytes]:
    row = 0
    for piece in _cut(stream, separator):
        piece = piece.removesuffix(b"\n")
        if piece.strip():
            check_length(len(piece), at_row(uri, row))
            decoded(piece, at_row(uri, row))
            yield piece
            row += 1


def _cut(stream: BinaryIO, separator: bytes) -> Iterator[bytes]:
    """Cut bytes, which cuts characters too, since in UTF-8 none is found inside another."""
    rest, searched = bytearray(), 0
    while len(rest) <= MOST_DOCUMENT_BYTES and (chunk := stream.read(BUFFER_BYTES)):
        rest += chunk
        start = 0
        while (end := rest.find(separator, max(start, searched))) >= 0:
            yield bytes(rest[start:end])
            start = end + len(separator)
        del rest[:start]
        searched = max(0, len(rest) - len(separator) + 1)
    yield bytes(rest)


def _batches(found: Iterable[_Document], columns: Sequence[str]) -> Iterator[DocumentBatch]:
    first, size, batch = 0, 0, list[_Document]()
    for document in found:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_BYTES or len(batch) == MOST_BATCH_DOCUMENTS:
            yield _batch(first, batch, columns)
            first, size, batch = first + len(batch), 0, []
    if batch:
        yield _batch(first, batch, columns)


def _batch(first: int, batch: list[_Document], columns: Sequence[str]) -> DocumentBatch:
    values = {}
    for place, name in enumerate(columns):
        column = [document.values[place] for document in batch]
        values[name] = pa.array(column, pa.float64() if name in NUMBERS else pa.large_string(), from_pandas=False)
    ids = [document.id for document in batch if document.id is not None]
    return DocumentBatch(first, [document.text for document in batch], ids, values)
