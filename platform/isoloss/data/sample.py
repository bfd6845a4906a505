"""A small corpus of real English where there is no network: the docstrings of installed libraries, as FineWeb's table.

The columns are FineWeb's nine. ``dump`` is "docstrings", ``url`` the library's home, ``date`` null and
``language_score`` 1.0 throughout: nobody measured it. ``token_count`` counts words between white space, where FineWeb
counts tokens of GPT-2.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isoloss.data.card import DataError
from isoloss.data.files import writing

LIBRARIES = ("torch", "numpy", "scipy", "pandas", "scikit-learn", "networkx")
"""Under licences like BSD, well documented, and always there: isoloss needs them, or torch and MLflow do."""

LEAST_BYTES, MOST_BYTES = 500, 10_000
"""Of a document, in UTF-8. A docstring that is longer by itself is kept whole."""

ROW_GROUP = 1_000

SCHEMA = pa.schema(
    [
        ("text", pa.string()), ("id", pa.string()), ("dump", pa.string()), ("url", pa.string()), ("date", pa.string()),
        ("file_path", pa.string()), ("language", pa.string()), ("language_score", pa.float64()),
        ("token_count", pa.int64()),
    ]
)  # fmt: skip

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def write_sample(path: Path, most_bytes: int | None = None) -> int:
    """Write the docstrings of this Python's libraries as a parquet file, and return the documents' bytes of UTF-8.

    Documents are in the order of their ids' hashes, so that the first ones, of at most ``most_bytes``, are a fair
    sample. Raises DataError when a library is missing or the file cannot be written.
    """
    if path.suffix != ".parquet":
        raise DataError(f"cannot write the sample as {path}: it is a parquet file, whose name must end in .parquet")
    rows = {row["text"]: row for library in LIBRARIES for row in _rows(library)}
    ordered = sorted(rows.values(), key=lambda row: hashlib.sha256(row["id"].encode()).digest())
    taken, size = [], 0
    for row in ordered:
        length = len(row["text"].encode())
        if most_bytes is not None and size + length > most_bytes:
            break
        taken.append(row)
        size += length
    table = pa.Table.from_pylist(taken, SCHEMA)
    with writing(path) as file:
        pq.write_table(table, file, row_group_size=ROW_GROUP, compression="zstd")
    return size


def _rows(library: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each document of a library."""
    try:
        found = distribution(library)
    except PackageNotFoundError:
        raise DataError(f"the sample is made of the docstrings of {library}, which is not installed here") from None
    home, version = _home(found), found.version
    for file in sorted(found.files or (), key=str):
        if file.suffix != ".py" or any(part.startswith("test") for part in file.parts):
            continue
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        names: set[str] = set()
        for name, text in _documents(_parse(Path(str(found.locate_file(file)))), module):
            if len(text.encode()) >= LEAST_BYTES and name not in names:
                names.add(name)
                yield {
                    "text": text, "id": f"<urn:docstring:{library}-{version}:{name}>", "dump": "docstrings",
                    "url": home, "date": None, "file_path": str(file), "language": "en", "language_score": 1.0,
                    "token_count": len(text.split()),
                }  # fmt: skip


def _documents(definition: Definition, name: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of a definition: one document where all its docstrings are short, else its parts' each."""
    text = "\n\n".join(_docstrings(definition))
    inner = list(_definitions(definition))
    if len(text.encode()) <= MOST_BYTES or not inner:
        yield name, text
        return
    if own := ast.get_docstring(definition):
        yield name, own
    for child in inner:
        yield from _documents(child, f"{name}.{child.name}")


def _docstrings(definition: Definition) -> Iterator[str]:
    if own := ast.get_docstring(definition):
        yield own
    for child in _definitions(definition):
        yield from _docstrings(child)


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the classes and functions of a node that stand in no other of them."""
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, ()):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            else:
                yield from _definitions(child)


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        return ast.parse(path.read_bytes())


def _home(found: Distribution) -> str:
    headers = found.metadata
    links = {name.lower(): url for name, url in (link.split(", ", 1) for link in headers.get_all("Project-URL") or ())}
    return links.get("homepage") or next(iter(headers.get_all("Home-page") or ()), "")
