"""Source files: what a pattern stands for, on this machine or in an object store."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from isoloss.config.base import Part
from isoloss.config.corpus import Files
from isoloss.data.card import DataError

ENDINGS = (".parquet", ".jsonl", ".jsonl.gz", ".txt")
SCHEMES = ("s3://", "gs://", "file://")
BUFFER_BYTES = 1 << 20

SUPPORTED = (
    f"a pattern is a file, a folder or a path with '*', on this machine or after {', '.join(SCHEMES)}, of files that "
    f"end in {', '.join(ENDINGS)}"
)


class SourceFile(Part):
    """One file of documents: where it is, its path below the folder that all files share, its size, its last change.

    ``size`` is in bytes, ``modified`` in nanoseconds since 1970, 0 where the store does not tell.
    """

    uri: str
    name: str
    size: int
    modified: int


def list_files(source: Files) -> list[SourceFile]:
    """Return the files that a source's pattern stands for, sorted by path; a folder stands for the files in it.

    Raises DataError when there is none, when one has an ending that is not known, or when they cannot be listed.
    """
    pattern = source.pattern
    try:
        system, path = _system(pattern)
        found = [info for match in _matches(system, path) for info in _files(system, match)]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot list {pattern!r}: {error}; {SUPPORTED}") from None
    if not found:
        raise DataError(f"no file matches {pattern!r}; {SUPPORTED}")
    paths = {info.path: info for info in found}
    shared = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [
        SourceFile(
            uri=_uri(pattern, path),
            name=os.path.relpath(path, shared or "."),
            size=info.size,
            modified=info.mtime_ns or 0,
        )
        for path, info in sorted(paths.items())
    ]


def open_source(file: SourceFile) -> BinaryIO:
    """Return a source file for reading, at any place; raises OSError."""
    system, path = _system(file.uri)
    return io.BufferedReader(system.open_input_file(path), BUFFER_BYTES)


def ending(name: str) -> str:
    """Return which of the known endings a file name has; raises DataError when it has none of them."""
    for known in sorted(ENDINGS, key=len, reverse=True):
        if name.lower().endswith(known):
            return known
    raise DataError(f"{name} is no file of documents: its name must end in {', '.join(ENDINGS)}")


def _system(location: str) -> tuple[fs.FileSystem, str]:
    if "://" not in location:
        return fs.LocalFileSystem(), str(Path(location).expanduser().absolute())
    if not location.startswith(SCHEMES):
        raise DataError(f"cannot read {location!r}; {SUPPORTED}")
    system, path = fs.FileSystem.from_uri(location)
    return system, path


def _uri(pattern: str, path: str) -> str:
    if "://" not in pattern:
        return path
    options = pattern.partition("?")[1:]
    return f"{pattern.partition('://')[0]}://{quote(path)}{''.join(options)}"


def _matches(system: fs.FileSystem, path: str) -> list[str]:
    """Return the paths that match, walking down one level at a time: a store may hold much beside them."""
    root, *steps = path.rstrip("/").split("/")
    found = [root]
    for step in steps:
        if "*" not in step:
            found = [f"{base}/{step}" for base in found]
            continue
        like = re.compile("[^/]*".join(re.escape(piece) for piece in step.split("*")))
        found = [info.path for base in found for info in _inside(system, base) if like.fullmatch(info.base_name)]
    return found


def _inside(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    infos = system.get_file_info(fs.FileSelector(folder or "/", allow_not_found=True))
    return [info for info in infos if not info.base_name.startswith(".")]


def _files(system: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    info = system.get_file_info(path)
    if info.type == fs.FileType.Directory:
        return [
            inner
            for inner in _inside(system, path)
            if inner.type == fs.FileType.File and inner.base_name.lower().endswith(ENDINGS)
        ]
    if info.type == fs.FileType.File:
        ending(info.path)
        return [info]
    return []
