"""Files that are written whole or not at all, so that a file which exists is complete."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from isoloss.data.card import AGAIN, DataError

UNFINISHED = ".unfinished"


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write; it takes the name ``path`` when the block ends, and vanishes when the block fails.

    Raises DataError, naming the file and the reason, when it cannot be written, as on a full disk.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                yield file
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def remove_unfinished(folder: Path) -> None:
    """Delete what killed processes left unfinished in ``folder``; nobody may be writing in it."""
    for path in folder.rglob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8; raises DataError when it cannot be written."""
    with writing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON values, indented, keys in their order; raises DataError when they cannot be written."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the JSON values of a file; raises DataError when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}; {AGAIN}") from None


def write_arrow(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write record batches as they come, as an Arrow IPC file; raises DataError when they cannot be written."""
    with writing(path) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_arrow(path: Path) -> pa.Table:
    """Return an Arrow IPC file as a table mapped from disk; raises DataError when it is missing or damaged."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {error}; {AGAIN}") from None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
