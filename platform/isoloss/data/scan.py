"""The scan: one row for every document of a source file, kept or not, and why.

Shapes: N documents of a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isoloss.config.corpus import Files, Where
from isoloss.data.documents import DocumentBatch
from isoloss.data.files import read_arrow, write_arrow
from isoloss.data.job import Job
from isoloss.data.read import read_documents
from isoloss.data.sources import SourceFile

HASH_BYTES = 16
KEPT = 0
REASONS = (
    "",
    "language",
    "language_score",
    "score",
    "int_score",
    "dump",
    "empty",
    "too short",
    "too long",
    "byte without token",
    "duplicate id",
    "duplicate text",
    "beyond train_bytes",
)
"""Why a document is dropped; its place here is its code, KEPT for none."""

SCAN = pa.schema(
    {
        "row": pa.int64(),
        "id": pa.string(),
        "id_key": pa.uint64(),
        "hash": pa.binary(HASH_BYTES),
        "bytes": pa.int64(),
        "dropped": pa.dictionary(pa.int8(), pa.string()),
    }
)
"""``id_key`` is a hash of the id, ``hash`` that of the text's UTF-8 (blake2b), ``bytes`` its length."""


def scan(file: SourceFile, source: Files, where: Where, missing: bytes = b"") -> Iterator[pa.RecordBatch]:
    """Yield a row of SCAN for every document of a file, in its order; raises what ``read_documents`` raises.

    A text with one of the ``missing`` bytes is dropped: some tokenizers, such as SmolLM2's, lack rare ones.
    """
    for batch in read_documents(file, source, _columns(where)):
        rows = np.arange(batch.first, batch.first + len(batch.texts_N))
        bytes_N = np.array([len(text) for text in batch.texts_N], np.int64)
        dropped = pa.DictionaryArray.from_arrays(_dropped(batch, bytes_N, where, missing), pa.array(REASONS))
        hashes = pa.array([text_hash(text) for text in batch.texts_N], SCAN.field("hash").type)
        keys = pa.array([_id_key(name) for name in batch.ids_N], pa.uint64())
        yield pa.record_batch([rows, pa.array(batch.ids_N), keys, hashes, bytes_N, dropped], schema=SCAN)


def scan_file(job: str) -> int:
    """Write the scan of a job's file and return the bytes of its texts; raises what ``scan`` raises."""
    it = Job.model_validate_json(job)
    path = it.layout.scan(it.number)
    write_arrow(path, SCAN, scan(it.file, it.source, it.where, bytes(it.missing)))
    return int(pc.sum(read_arrow(path)["bytes"]).as_py())


def text_hash(text: bytes) -> bytes:
    """Return the hash that stands for a text: 16 bytes of BLAKE2b."""
    return hashlib.blake2b(text, digest_size=HASH_BYTES).digest()


def _id_key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def _columns(where: Where) -> list[str]:
    """Return the columns that the filters look at."""
    asked = {
        "language": where.language,
        "language_score": where.language_score,
        "score": where.score,
        "int_score": where.int_score,
        "dump": where.dumps or None,
    }
    return [name for name, value in asked.items() if value is not None]


def _dropped(batch: DocumentBatch, bytes_N: np.ndarray, where: Where, missing: bytes) -> np.ndarray:
    """Return the code of the first reason to drop each document, as int8; a null is accepted by no filter."""
    accepted_N = {name: np.asarray(_accepted(name, column, where)) for name, column in batch.columns.items()}
    refused_N = {name: ~accepted for name, accepted in accepted_N.items()} | {
        "empty": bytes_N == 0,
        "too short": bytes_N < where.least_bytes,
        "too long": bytes_N > (where.most_bytes or np.iinfo(np.int64).max),
        "byte without token": np.array([len(text.translate(None, missing)) for text in batch.texts_N]) < bytes_N,
    }
    codes = [np.int8(REASONS.index(reason)) for reason in refused_N]
    return np.select(list(refused_N.values()), codes, np.int8(KEPT))


def _accepted(name: str, column: pa.Array, where: Where) -> pa.Array:
    if name == "dump":
        return pc.is_in(column, value_set=pa.array(where.dumps, column.type))
    asked = getattr(where, name)
    compare = pc.equal if name == "language" else pc.greater_equal
    return compare(column, pa.scalar(asked, column.type)).fill_null(False)
