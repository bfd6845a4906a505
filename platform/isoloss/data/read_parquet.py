"""Reading parquet: page by page, so that a row group may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from isoloss.config.corpus import Files
from isoloss.data.card import DataError
from isoloss.data.documents import (
    BATCH_BYTES,
    MOST_BATCH_DOCUMENTS,
    NUMBERS,
    DocumentBatch,
    at_row,
    check_length,
    decoded,
    missing,
)
from isoloss.data.sources import BUFFER_BYTES

TYPES = {
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "numbers": (pa.types.is_integer, pa.types.is_floating),
}


def parquet(uri: str, stream: BinaryIO, source: Files, columns: Sequence[str]) -> Iterator[DocumentBatch]:
    """Yield the documents of a parquet file, in their order; raises DataError, OSError or pa.ArrowException."""
    file = pq.ParquetFile(stream, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
    names = list(dict.fromkeys([source.text, *([source.id] if source.id else []), *columns]))
    for name in names:
        if name not in file.schema_arrow.names:
            raise missing(uri, name, file.schema_arrow.names)
    first = 0
    for batch in file.iter_batches(_documents_a_batch(file.metadata, source.text), columns=names, use_threads=False):
        texts = _utf8(uri, first, source.text, batch.column(source.text))
        for row, text in enumerate(texts, first):
            check_length(len(text), at_row(uri, row))
        ids = _ids(uri, first, source.id, batch.column(source.id)) if source.id else []
        yield DocumentBatch(first, texts, ids, {name: _values(uri, name, batch.column(name)) for name in columns})
        first += len(texts)


def _documents_a_batch(metadata: pq.FileMetaData, text: str) -> int:
    """Return how many documents make BATCH_BYTES in the row group where they are longest."""
    longest = 1.0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        sizes = {c.path_in_schema: c.total_uncompressed_size for c in map(group.column, range(group.num_columns))}
        longest = max(longest, sizes.get(text, 0) / max(1, group.num_rows))
    return max(1, min(MOST_BATCH_DOCUMENTS, int(BATCH_BYTES / longest)))


def _utf8(uri: str, first: int, name: str, column: pa.Array) -> list[bytes]:
    column = _plain(uri, name, column, "text").cast(pa.large_string())
    if column.null_count:
        raise DataError(f"{at_row(uri, first + column.is_null().to_pylist().index(True))}: {name!r} is null")
    values: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    for row, value in enumerate(values, first):
        decoded(value, f"{at_row(uri, row)}: {name!r}")
    return values


def _ids(uri: str, first: int, name: str, column: pa.Array) -> list[str]:
    whole = pa.types.is_integer(column.type)
    return [value.decode() for value in _utf8(uri, first, name, column.cast(pa.string()) if whole else column)]


def _values(uri: str, name: str, column: pa.Array) -> pa.Array:
    if name in NUMBERS:
        return _plain(uri, name, column, "numbers").cast(pa.float64())
    return _plain(uri, name, column, "text").cast(pa.large_string())


def _plain(uri: str, name: str, column: pa.Array, accepted: str) -> pa.Array:
    """Return a column without a dictionary; raises DataError when its type is not accepted."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not any(test(column.type) for test in (*TYPES[accepted], pa.types.is_null)):
        raise DataError(f"{uri}: the column {name!r} must hold {accepted}, not {column.type}")
    return column
