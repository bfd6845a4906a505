"""Reading one source file: its documents as a stream, never a whole file in memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa

from isoloss.config.corpus import Files
from isoloss.data.card import DataError
from isoloss.data.documents import DocumentBatch
from isoloss.data.read_lines import json_lines, text, zipped_json_lines
from isoloss.data.read_parquet import parquet
from isoloss.data.sources import SourceFile, ending, open_source

READERS = {".parquet": parquet, ".jsonl": json_lines, ".jsonl.gz": zipped_json_lines, ".txt": text}


def read_documents(file: SourceFile, source: Files, columns: Sequence[str] = ()) -> Iterator[DocumentBatch]:
    """Yield a file's documents in their order, with the values of ``columns``; no other column is read.

    A document without an id is called ``<file name>:<row>``. Raises DataError, naming the file and the row or the
    column, for a file that is empty, truncated or malformed, a missing column, a value of another type, and a text
    that is null, not UTF-8 or longer than MOST_DOCUMENT_BYTES.
    """
    if not file.size:
        raise DataError(f"{file.uri} is empty")
    rows = 0
    try:
        with open_source(file) as stream:
            for batch in READERS[ending(file.name)](file.uri, stream, source, columns):
                rows += len(batch.texts_N)
                yield batch if batch.ids_N else _named(batch, file)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise DataError(f"cannot read {file.uri}: it is gone, truncated or damaged ({error})") from None
    if not rows:
        raise DataError(f"{file.uri} holds no documents")


def _named(batch: DocumentBatch, file: SourceFile) -> DocumentBatch:
    return batch._replace(ids_N=[f"{file.name}:{batch.first + place}" for place in range(len(batch.texts_N))])
