"""The selection: which scanned documents are dropped as duplicates, which are held out, and which train.

Shapes: N scanned documents of all files, P that passed the filters, K that are kept; some 40 bytes of memory each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from isoloss.config.corpus import Corpus
from isoloss.data.card import DataError
from isoloss.data.scan import HASH_BYTES, KEPT, REASONS

DOCUMENTS = pa.schema(
    {"row": pa.int64(), "id": pa.string(), "hash": pa.binary(HASH_BYTES), "bytes": pa.int64(), "held_out": pa.bool_()}
)
NAMED = 3
"""So many of the documents that are dropped for one reason are named."""


class Selection(NamedTuple):
    """What becomes of each scanned document: the code of its reason in REASONS, and whether it is held out."""

    dropped_N: np.ndarray
    held_out_N: np.ndarray


def select(scans: Sequence[pa.Table], corpus: Corpus) -> Selection:
    """Return what becomes of the documents of ``scans``, which are the tables of all files in their order.

    Of the documents that pass the filters, each whose id or text occurs before is dropped, be the earlier one kept or
    not. Those with the smallest hashes are held out, until they hold ``held_out_bytes``; of the others, those that
    begin after ``train_bytes`` are dropped. Raises DataError when too little text is left.
    """
    dropped_N = np.concatenate([chunk.indices for table in scans for chunk in table["dropped"].chunks])
    passed_N = dropped_N == KEPT
    same_id_P = _repeats(_joined(scans, lambda table: table["id_key"].to_numpy(), passed_N))
    same_text_P = _repeats(_joined(scans, lambda table: hash_keys(table, 0), passed_N))
    codes = [np.int8(REASONS.index(reason)) for reason in ("duplicate id", "duplicate text")]
    dropped_N[passed_N] = np.select([same_id_P, same_text_P], codes, np.int8(KEPT))

    kept_N = dropped_N == KEPT
    bytes_K = _joined(scans, lambda table: table["bytes"].to_numpy(), kept_N)
    held_out_K = smallest(_joined(scans, lambda table: hash_keys(table, 0), kept_N), bytes_K, corpus.held_out_bytes)
    _check_enough(corpus, dropped_N, bytes_K, held_out_K)
    held_out_N = np.zeros(len(dropped_N), bool)
    held_out_N[kept_N] = held_out_K
    if corpus.train_bytes is not None:
        training_K = np.where(held_out_K, 0, bytes_K)
        beyond_K = ~held_out_K & (np.cumsum(training_K) - training_K >= corpus.train_bytes)
        dropped_N[np.flatnonzero(kept_N)[beyond_K]] = REASONS.index("beyond train_bytes")
    return Selection(dropped_N, held_out_N)


def hash_keys(table: pa.Table, half: int) -> np.ndarray:
    """Return the first (0) or the second (1) half of each document's hash, as uint64."""
    return _hashes(table).view(">u8")[:, half].astype(np.uint64)


def smallest(keys_K: np.ndarray, bytes_K: np.ndarray, least_bytes: int) -> np.ndarray:
    """Mark the documents with the smallest keys, as few as hold ``least_bytes`` together; all where they do not."""
    order_K = np.argsort(keys_K, kind="stable")
    few = np.searchsorted(np.cumsum(bytes_K[order_K]), least_bytes) + 1
    marked_K = np.zeros(len(keys_K), bool)
    marked_K[order_K[:few]] = True
    return marked_K


def freeze(scan: pa.Table, selection: Selection) -> pa.Table:
    """Return the kept documents of one file, whose part of the selection is given, as rows of DOCUMENTS."""
    table = scan.append_column("held_out", pa.array(selection.held_out_N))
    return table.filter(pa.array(selection.dropped_N == KEPT)).select(DOCUMENTS.names)


def frozen_summary(frozen: Iterable[pa.Table]) -> dict[str, Any]:
    """Return, as JSON values, the documents and bytes that train and that are held out, and a hash of all.

    The hash covers each text and whether it is held out, in the order of the documents, however they lie in files.
    """
    digest, documents, size = hashlib.sha256(), np.zeros(2, np.int64), np.zeros(2, np.int64)
    for table in frozen:
        held_out_K = table["held_out"].to_numpy()
        digest.update(np.column_stack([held_out_K.astype(np.uint8), _hashes(table)]).tobytes())
        documents += np.bincount(held_out_K, minlength=2)
        size += np.bincount(held_out_K, table["bytes"].to_numpy(), minlength=2).astype(np.int64)
    return {
        "hash": digest.hexdigest(),
        "training": {"documents": int(documents[0]), "bytes": int(size[0])},
        "held_out": {"documents": int(documents[1]), "bytes": int(size[1])},
    }


def dropped_summary(scans: Sequence[pa.Table], names: Sequence[str], dropped_N: np.ndarray) -> dict[str, Any]:
    """Return, as JSON values, how many documents each reason dropped, and the first of them by file, row and id."""
    ends = np.cumsum([len(table) for table in scans])
    found: dict[str, Any] = {}
    for code, reason in enumerate(REASONS):
        places = np.flatnonzero(dropped_N == code)
        if code == KEPT or not len(places):
            continue
        first = []
        for place in places[:NAMED]:
            number = int(np.searchsorted(ends, place, side="right"))
            row = int(place - ends[number] + len(scans[number]))
            first.append({"file": names[number], "row": row, "id": scans[number]["id"][row].as_py()})
        found[reason] = {"documents": len(places), "first": first}
    return found


def _joined(tables: Sequence[pa.Table], values: Callable[[pa.Table], np.ndarray], chosen_N: np.ndarray) -> np.ndarray:
    """Return the values of the chosen documents of all tables."""
    parts_N = np.split(chosen_N, np.cumsum([len(table) for table in tables])[:-1])
    return np.concatenate([values(table)[part] for table, part in zip(tables, parts_N, strict=True)])


def _hashes(table: pa.Table) -> np.ndarray:
    """Return the hash of each document, as 16 bytes."""
    parts = [
        np.frombuffer(chunk.buffers()[1], np.uint8).reshape(-1, HASH_BYTES)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in table["hash"].chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty((0, HASH_BYTES), np.uint8), *parts])


def _repeats(keys_P: np.ndarray) -> np.ndarray:
    """Mark the keys that occur before."""
    order_P = np.argsort(keys_P, kind="stable")
    keys_P = keys_P[order_P]
    marked_P = np.zeros(len(keys_P), bool)
    marked_P[order_P[1:]] = keys_P[1:] == keys_P[:-1]
    return marked_P


def _check_enough(corpus: Corpus, dropped_N: np.ndarray, bytes_K: np.ndarray, held_out_K: np.ndarray) -> None:
    if not len(bytes_K):
        counts = np.bincount(dropped_N, minlength=len(REASONS))
        reasons = ", ".join(f"{count} for {reason}" for reason, count in zip(REASONS, counts, strict=True) if count)
        raise DataError(f"no document of {corpus.name!r} is left: of {len(dropped_N)} were dropped {reasons}")
    total, held_out = int(bytes_K.sum()), int(bytes_K[held_out_K].sum())
    if 2 * held_out > total:
        raise DataError(
            f"held_out_bytes: to hold {corpus.held_out_bytes} bytes out takes documents of {held_out}, more than half "
            f"of the {total} bytes of text in {corpus.name!r}; hold out less, or give more documents"
        )
