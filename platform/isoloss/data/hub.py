"""Documents of the Hugging Face hub, streamed into parquet files; a download goes on after the last whole file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq

from isoloss.config.base import Listed, Part
from isoloss.config.corpus import Files, Hub
from isoloss.data.card import DataError
from isoloss.data.files import write_text, writing

if TYPE_CHECKING:
    from datasets import IterableDataset

COLUMNS = {
    "text": pa.string(), "id": pa.string(), "dump": pa.string(), "language": pa.string(),
    "language_score": pa.float64(), "score": pa.float64(), "int_score": pa.int64(),
}  # fmt: skip
"""What is kept of a data set where it has it: text and id, and what ``Where`` filters by."""

DOCUMENTS_OF_A_FILE = 20_000
ROW_GROUP = 1_000


class Download(Part):
    """How far a download has come: whole files, their documents, and where the stream goes on.

    ``revision`` is the commit that a branch or tag meant at the start, so that all files are of one.
    """

    revision: str
    files: int = 0
    documents: int = 0
    columns: Annotated[tuple[str, ...], Listed] = ()
    position: dict[str, Any] | None = None
    ended: bool = False


def fetch(hub: Hub, folder: Path, say: Callable[[str], None]) -> Files:
    """Download the first documents of a data set to ``folder/source``, unless they are there, and return the files.

    Raises DataError when ``datasets`` is not installed, the data set cannot be opened or read, or a file not written.
    """
    source = folder / "source"
    state = source / "download.json"
    download = Download.model_validate_json(state.read_text()) if state.exists() else Download(revision=hub.revision)
    for now in () if download.ended else _downloads(hub, download, source):
        write_text(state, now.model_dump_json())
        say(f"{hub.dataset}: {now.documents:,} of {hub.documents:,} documents downloaded")
        download = now
    return Files(str(source / "*.parquet"), id="id" if "id" in download.columns else None)


def _downloads(hub: Hub, before: Download, source: Path) -> Iterator[Download]:
    """Write one file after another, and yield after each how far the download has come."""
    rows, revision = _open(hub, before)
    batches = _batches(hub, rows)
    files, documents, ended = before.files, before.documents, False
    while not ended:
        wanted = min(DOCUMENTS_OF_A_FILE, hub.documents - documents)
        written = _write(source / f"{files:05}.parquet", batches, wanted)
        if not documents + written:
            raise DataError(f"{hub.dataset} has no documents")
        files += written > 0
        documents += written
        ended = written < wanted or documents == hub.documents
        yield Download(
            revision=revision,
            files=files,
            documents=documents,
            columns=tuple(rows.column_names),
            position=rows.state_dict(),
            ended=ended,
        )


def _open(hub: Hub, before: Download) -> tuple[IterableDataset, str]:
    """Return the rows of a data set from where a download stands, in the columns to keep, and its commit."""
    try:
        from datasets import load_dataset_builder
    except ImportError:
        raise DataError(f"{hub.dataset} is on the hub, which needs: pip install 'isoloss[hub]'") from None
    try:
        builder = load_dataset_builder(hub.dataset, hub.config, revision=before.revision)
        rows = builder.as_streaming_dataset(split="train")
        present = rows.column_names or list(next(iter(rows)))
    except Exception as error:  # of datasets or of any library below it: to the user all mean the same
        raise DataError(
            f"cannot open {hub.dataset}, config {hub.config}, revision {before.revision}: {_words(error)}; check these "
            "names, and that this machine reaches huggingface.co"
        ) from None
    if "text" not in present:
        raise DataError(f"{hub.dataset} has no column 'text'; it has {', '.join(map(repr, present))}")
    rows = rows.select_columns([name for name in COLUMNS if name in present]).with_format("arrow")
    if before.position is not None:
        rows.load_state_dict(before.position)
    return rows, _commit(builder.config.data_files) or before.revision


def _batches(hub: Hub, rows: IterableDataset) -> Iterator[pa.Table]:
    """Yield ROW_GROUP rows at a time as one table, alike wherever the stream was begun."""
    schema = pa.schema([(name, COLUMNS[name]) for name in rows.column_names])
    stream = rows.iter(batch_size=ROW_GROUP)
    while True:
        try:
            table = next(stream, None)
            if table is None:
                return
            table = table.select(schema.names).cast(schema).combine_chunks()
        except Exception as error:  # the network's as a rule, after the retries of datasets
            raise DataError(
                f"the download of {hub.dataset} broke off: {_words(error)}; run it again to go on"
            ) from None
        yield table


def _write(path: Path, batches: Iterator[pa.Table], most: int) -> int:
    """Write the next ``most`` documents, or what there is, and return how many; without any there is no file."""
    first = next(batches, None)
    if first is None:
        return 0
    written = 0
    with writing(path) as file, pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        for table in chain([first], batches):
            writer.write_table(table.slice(0, most - written))
            written = min(written + len(table), most)
            if written == most:
                break
    return written


def _commit(data_files: object) -> str | None:
    """Return the commit in the addresses of a data set's files, ``hf://datasets/name@commit/path``."""
    found = re.search(r"hf://datasets/[^@]+@([0-9a-f]{40})/", str(data_files))
    return found[1] if found else None


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
