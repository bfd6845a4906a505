"""The endless stream of training tokens against whole passes written out."""

from __future__ import annotations

import random

import numpy as np
import pytest

from isoloss.data.order import Order, permutation
from isoloss.data.shards import MappedDocuments


def documents(seed: int, lengths: list[list[int]]) -> MappedDocuments:
    """Return documents of random tokens in several files, by their lengths."""
    draw = np.random.default_rng(seed)
    files = [draw.integers(0, 60_000, sum(of_file)).astype(np.uint16) for of_file in lengths]
    return MappedDocuments(files, [np.array(of_file, np.int64) for of_file in lengths])


def lengths(seed: int, files: tuple[int, ...]) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.choice([1, 2, 3, 17]) for _ in range(count)] for count in files]


def written_out(source: MappedDocuments, seed: int, passes: int) -> np.ndarray:
    return np.concatenate(
        [source[document] for number in range(passes) for document in permutation(seed, number, len(source))]
    )


@pytest.mark.parametrize("files", [(5,), (3, 0, 4, 1), (0, 1), (40, 30)])
@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_any_stretch_is_that_of_the_passes_written_out(files: tuple[int, ...], count: int) -> None:
    source = documents(1, lengths(2, files))
    stream = written_out(source, 5, passes=4)
    stream = np.concatenate([stream, written_out(source, 5, 4 + -(-count // (len(stream) // 4)))[len(stream) :]])
    order = Order(source, 5)
    assert order.tokens_per_pass == source.lengths_K.sum()
    starts = list(range(len(stream) - count + 1))
    random.Random(3).shuffle(starts)
    for start in starts[:200]:
        assert order.tokens(start, count).tolist() == stream[start : start + count].tolist()
    assert order.tokens(0, len(stream)).tolist() == stream.tolist()


def test_documents_are_found_in_their_files() -> None:
    source = MappedDocuments(
        [np.array([1, 2, 3], np.uint16), np.empty(0, np.uint16), np.array([4, 5], np.uint16)],
        [np.array([1, 2]), np.array([], np.int64), np.array([2])],
    )
    assert [source[place].tolist() for place in range(len(source))] == [[1], [2, 3], [4, 5]]


def test_every_pass_has_every_document_once_in_an_order_of_its_own() -> None:
    orders = [permutation(0, number, 50).tolist() for number in range(20)] + [permutation(1, 0, 50).tolist()]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 21


def test_first_places_are_shared_out_evenly() -> None:
    # Of 4,000 passes over 8 documents each is first in 500 ± 21: seven degrees of freedom, 0.1 % beyond 24.3.
    counts = np.bincount([permutation(7, number, 8)[0] for number in range(4000)], minlength=8)
    assert ((counts - 500) ** 2 / 500).sum() < 24.3


def test_a_seed_has_one_order_for_good() -> None:
    # Written down when this order was made: trials that differ in it are other trials.
    assert permutation(0, 0, 10).tolist() == [6, 5, 1, 7, 3, 0, 4, 8, 2, 9]
    assert permutation(2**64 - 1, 3, 10).tolist() == [0, 9, 7, 5, 4, 3, 1, 6, 2, 8]


def test_two_vocabularies_read_the_same_documents_in_the_same_order() -> None:
    one, other = Order(documents(1, lengths(1, (20, 10))), 9), Order(documents(2, lengths(5, (20, 10))), 9)
    assert one.tokens_per_pass != other.tokens_per_pass
    read = [[piece.document for piece in order.pieces(0, 3 * order.tokens_per_pass)] for order in (one, other)]
    assert read[0] == read[1]
    assert len(read[0]) == 90


def test_pieces_of_a_document_that_is_cut_meet() -> None:
    order = Order(documents(1, [[10, 10, 10]]), 0)
    first, second = permutation(0, 0, 3)[:2]
    assert list(order.pieces(4, 3)) == [(first, 4, 7)]
    assert list(order.pieces(7, 5)) == [(first, 7, 10), (second, 0, 2)]


def test_reading_far_out_makes_one_pass_only(monkeypatch: pytest.MonkeyPatch) -> None:
    order, made = Order(documents(1, lengths(1, (30,))), 0), []
    make = Order._make_pass
    monkeypatch.setattr(Order, "_make_pass", lambda self, number: made.append(number) or make(self, number))
    far = 10**12 * order.tokens_per_pass
    assert len(order.tokens(far - 5, 10)) == 10
    order.tokens(far + 5, 10)
    assert made == [10**12 - 1, 10**12]
