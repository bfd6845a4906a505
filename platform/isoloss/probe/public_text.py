"""The text that a public model is measured on: documents of files, cut into windows of tokens."""

# T positions of a window, B windows of a batch

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from isoloss.config.base import messages
from isoloss.config.corpus import Files
from isoloss.data.card import DataError
from isoloss.data.read import read_documents
from isoloss.data.sources import list_files

UNKNOWN = -1
"""Bytes of a token of a document that its tokens do not spell."""


class Window(NamedTuple):
    """At most ``length`` consecutive tokens of one document, and the token that follows each, which is scored.

    ``document`` counts documents from 0. ``bytes_T`` are the bytes of UTF-8 that each target stands for, or UNKNOWN.
    """

    document: int
    inputs_T: NDArray[np.int64]
    targets_T: NDArray[np.int64]
    bytes_T: NDArray[np.int64]


def documents(patterns: Sequence[str], text: str = "text") -> Iterator[str]:
    """Yield the documents of all files that the patterns stand for, in their order; raises DataError."""
    for pattern in patterns:
        try:
            source = Files(pattern, text=text, id=None)
        except ValidationError as error:
            raise DataError(f"no files: {messages(error)}") from None
        for file in list_files(source):
            for batch in read_documents(file, source):
                yield from (document.decode() for document in batch.texts_N)


def windows(
    texts: Iterable[str], encode: Callable[[str], list[int]], spelling: dict[int, bytes], length: int
) -> Iterator[Window]:
    """Yield the windows of documents: each document its own context, every token but its first scored once.

    A window begins with the token that the one before it scored last.
    """
    for document, text in enumerate(texts):
        ids = encode(text)
        ids_L, bytes_L = np.array(ids, np.int64), _bytes(ids, text, spelling)
        for start in range(0, len(ids) - 1, length):
            inputs, targets = slice(start, min(start + length, len(ids) - 1)), slice(start + 1, start + 1 + length)
            yield Window(document, ids_L[inputs], ids_L[targets], bytes_L[targets])


def first_tokens(found: Iterable[Window], most: int | None) -> Iterator[Window]:
    """Yield windows until they have ``most`` scored tokens, the last cut short; all of them for None."""
    left = most
    for window in found:
        if left is not None and len(window.targets_T) >= left:
            document, *arrays = window
            yield Window(document, *(array[:left] for array in arrays))
            return
        yield window
        left = None if left is None else left - len(window.targets_T)


def batches(found: Iterable[Window], size: int) -> Iterator[list[Window]]:
    """Yield ``size`` windows at a time; the last batch may be smaller."""
    iterator = iter(found)
    return iter(lambda: list(islice(iterator, size)), [])


def _bytes(ids: list[int], text: str, spelling: dict[int, bytes]) -> NDArray[np.int64]:
    """Return the bytes of each token, UNKNOWN for all unless together they spell the text."""
    pieces = [spelling.get(id) for id in ids]
    if None in pieces or b"".join(piece for piece in pieces if piece is not None) != text.encode():
        return np.full(len(ids), UNKNOWN, np.int64)
    return np.array([len(piece) for piece in pieces if piece is not None], np.int64)
