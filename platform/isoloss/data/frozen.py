"""The texts of the frozen documents, read from their source again and held against what was scanned.

Shapes: K frozen documents of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from isoloss.config.corpus import Files
from isoloss.data.card import DataError
from isoloss.data.documents import at_row
from isoloss.data.read import read_documents
from isoloss.data.scan import text_hash
from isoloss.data.selection import hash_keys, smallest
from isoloss.data.sources import SourceFile


def frozen_texts(file: SourceFile, source: Files, frozen: pa.Table) -> Iterator[list[str]]:
    """Yield the texts of the documents of ``frozen``, rows of DOCUMENTS from ``file``, in order and in batches.

    Raises DataError when a text is not what it was when it was scanned, and what ``read_documents`` raises.
    """
    rows_K, done = frozen["row"].to_numpy(), 0
    for batch in read_documents(file, source) if len(rows_K) else ():
        stop = int(np.searchsorted(rows_K, batch.first + len(batch.texts_N)))
        texts = [batch.texts_N[row - batch.first] for row in rows_K[done:stop]]
        hashes = frozen["hash"].slice(done, stop - done).to_pylist()
        for row, text, expected in zip(rows_K[done:stop], texts, hashes, strict=True):
            if text_hash(text) != expected:
                raise _changed(file, row)
        if texts:
            yield [text.decode() for text in texts]
        done = stop
    if done < len(rows_K):
        raise _changed(file, rows_K[done])


def sample(frozen: Sequence[pa.Table], least_bytes: int) -> Iterator[pa.Table]:
    """Yield, of each file's frozen documents, the training documents with the smallest second halves of the hash.

    They are as few as hold ``least_bytes`` together, or all. The first halves decide what is held out, so that this is
    a sample of its own.
    """
    keys = np.concatenate([hash_keys(table, 1)[_trains(table)] for table in frozen])
    sizes = np.concatenate([table["bytes"].to_numpy()[_trains(table)] for table in frozen])
    largest = keys[smallest(keys, sizes, least_bytes)].max()
    del keys, sizes
    for table in frozen:
        yield table.filter(pa.array(_trains(table) & (hash_keys(table, 1) <= largest)))


def _trains(table: pa.Table) -> np.ndarray:
    return ~table["held_out"].to_numpy()


def _changed(file: SourceFile, row: int) -> DataError:
    return DataError(
        f"{at_row(file.uri, row)}: the text is no longer what it was when it was scanned; restore the file, or delete "
        "the corpus's folder and prepare it again"
    )
