"""The order of training documents: an endless stream of tokens, pass after pass, each in an order of its own."""

# K documents, R pieces of documents

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoloss.data.shards import MappedDocuments, Shards


class Piece(NamedTuple):
    """Tokens ``first`` to ``stop`` of a training document."""

    document: int
    first: int
    stop: int


class _Pass(NamedTuple):
    number: int
    order_K: NDArray[np.int64]
    ends_K: NDArray[np.int64]  # of the documents in this order, in tokens from the start of the pass


class Order:
    """Training documents again and again, whole and one after another, as one endless stream of tokens.

    The permutation of a pass is a function of the seed, the pass and the number of documents alone, so every
    vocabulary has the same one. The current pass costs 16 bytes of memory a document; another is made anew.
    """

    @staticmethod
    @lru_cache(maxsize=4)
    def of(shards: Shards, seed: int) -> Order:
        """Return the order of the training documents under ``seed``; one that exists already is returned again."""
        return Order(shards.train, seed)

    def __init__(self, documents: MappedDocuments, seed: int) -> None:
        self.documents, self.seed = documents, seed
        self.tokens_per_pass = int(documents.lengths_K.sum())
        self._pass = self._make_pass(0)

    def tokens(self, start: int, count: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return tokens ``start`` to ``start + count`` of the stream (count ≥ 1); what comes before costs nothing.

        Sequence i of length T has the inputs iT to (i + 1)T and the targets iT + 1 to (i + 1)T + 1.
        """
        return np.concatenate(
            [self.documents[piece.document][piece.first : piece.stop] for piece in self.pieces(start, count)]
        )

    def pieces(self, start: int, count: int) -> Iterator[Piece]:
        """Yield the pieces of documents that make up tokens ``start`` to ``start + count`` of the stream."""
        while count > 0:
            number, begin = divmod(start, self.tokens_per_pass)
            end = min(begin + count, self.tokens_per_pass)
            yield from self._pieces(number, begin, end)
            start, count = start + end - begin, count - (end - begin)

    def _pieces(self, number: int, begin: int, end: int) -> Iterator[Piece]:
        current = self._pass
        if current.number != number:
            # In one assignment: the thread that reads ahead for a trial may outlive it, and trials share an order.
            self._pass = current = self._make_pass(number)
        first, last = np.searchsorted(current.ends_K, (begin, end - 1), side="right")
        document_R, ends_R = current.order_K[first : last + 1], current.ends_K[first : last + 1]
        starts_R = ends_R - self.documents.lengths_K[document_R]
        first_R, stop_R = np.maximum(begin - starts_R, 0), np.minimum(end, ends_R) - starts_R
        return map(Piece, document_R.tolist(), first_R.tolist(), stop_R.tolist())

    def _make_pass(self, number: int) -> _Pass:
        order_K = permutation(self.seed, number, len(self.documents))
        return _Pass(number, order_K, np.cumsum(self.documents.lengths_K[order_K]))


def permutation(seed: int, number: int, documents: int) -> NDArray[np.int64]:
    """Return the order of documents in pass ``number``, which enters the seed as NumPy's spawn key."""
    sequence = np.random.SeedSequence(seed, spawn_key=(number,))
    return np.random.Generator(np.random.Philox(sequence)).permutation(documents)
