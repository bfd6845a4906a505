"""The token shards of a prepared corpus, as training reads them: mapped from disk, and refused where they differ."""

# K documents, U held-out documents, N tokens, V vocabulary, F files

from __future__ import annotations

import json
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isoloss.config.base import value_label
from isoloss.config.tasks import Prepared, Size
from isoloss.data.card import AGAIN, ENVIRONMENT, DataError, card_text, read_card
from isoloss.data.files import read_arrow, read_json
from isoloss.data.layout import PARTS, Layout

Ids = NDArray[np.unsignedinteger[Any]]


class HeldOut(NamedTuple):
    """Held-out documents as one text to predict: a separator, then each document followed by its own.

    ``tokens_N`` (int64) has one more than ``document_N``, which says of each token after the first whose it is.
    """

    tokens_N: NDArray[np.int64]
    document_N: NDArray[np.int64]
    bytes_U: NDArray[np.int64]


class MappedDocuments:
    """The tokens of documents, each with its separator, in mapped files one after another.

    ``lengths_K`` (int64) holds the tokens of each document.
    """

    def __init__(self, files: list[Ids], lengths: list[NDArray[np.int64]]) -> None:
        self._files_F = files
        self._first_F = np.cumsum([0, *map(len, lengths)])[:-1].tolist()
        self._starts_K = np.concatenate([np.cumsum(of_file) - of_file for of_file in lengths])
        self.lengths_K = np.concatenate(lengths)

    def __len__(self) -> int:
        return len(self.lengths_K)

    def __getitem__(self, document: int) -> Ids:
        """Return the tokens of one document."""
        start = self._starts_K[document]
        file = self._files_F[bisect_right(self._first_F, document) - 1]
        return file[start : start + self.lengths_K[document]]


class Shards:
    """A prepared corpus in one vocabulary.

    ``train`` holds the training documents; ``separator`` is the token that ends each. ``bytes_V`` (int32) holds the
    UTF-8 bytes that each token stands for, special tokens 0; ``log_unigram_V`` (float64) the natural logarithm of each
    token's share of all tokens, -inf where it never occurs.
    """

    @staticmethod
    @lru_cache(maxsize=4)
    def open(folder: Path, data: Prepared, vocab_size: int) -> Shards:
        """Return the corpus ``data`` of the data folder; one that is open already is returned again.

        Raises DataError when it is not prepared there, is another than ``data`` says, or lacks a part.
        """
        card = read_card(folder, data.name)
        _refuse_difference(folder, data, card)
        size = next((size for size in card.sizes if size.vocab_size == vocab_size), None)
        if size is None:
            accepted = ", ".join(str(size.vocab_size) for size in card.sizes)
            raise DataError(f"the corpus {data.name!r} is prepared for vocab_size {accepted}, not {vocab_size}")
        return Shards(Layout(folder / data.name), card, size)

    def __init__(self, layout: Layout, card: Prepared, size: Size) -> None:
        self.vocab_size = size.vocab_size
        self.train, self._held_out, described = _documents(layout, size.vocab_size)
        self._held_out_bytes_U = described["bytes"].to_numpy()
        hashes = described["hash"].to_pylist()
        self._by_hash_U = sorted(range(len(hashes)), key=hashes.__getitem__)
        for field, found, expected in (
            ("documents", len(self.train), card.documents),
            ("held_out_documents", len(self._held_out), card.held_out_documents),
            ("held_out_bytes", int(self._held_out_bytes_U.sum()), card.held_out_bytes),
            ("tokens", int(self.train.lengths_K.sum()), size.tokens),
            ("held_out_tokens", int(self._held_out.lengths_K.sum()), size.held_out_tokens),
        ):
            if found != expected:
                raise DataError(f"{field} in {layout.root} add up to {found}, and its card says {expected}; {AGAIN}")
        self.separator = int(self._held_out[0][-1])  # which ends every document
        self.bytes_V = _values(layout, size.vocab_size, "bytes.npy")
        counts_V = _values(layout, size.vocab_size, "counts.npy")
        with np.errstate(divide="ignore"):
            self.log_unigram_V = np.log(counts_V) - np.log(counts_V.sum())

    def held_out(self, documents: int) -> HeldOut:
        """Return the first held-out documents in the order of their hashes, so that they come from all files.

        Raises DataError when there are fewer.
        """
        if documents > len(self._by_hash_U):
            raise DataError(
                f"{documents} held-out documents are asked for, and the corpus holds out {len(self._by_hash_U)}; ask "
                "for fewer, or prepare it with more held_out_bytes"
            )
        chosen = self._by_hash_U[:documents]
        texts = [self._held_out[document] for document in chosen]
        return HeldOut(
            np.concatenate([[self.separator], *texts]).astype(np.int64),
            np.repeat(np.arange(documents), [len(text) for text in texts]),
            self._held_out_bytes_U[chosen],
        )


def _refuse_difference(folder: Path, data: Prepared, card: Prepared) -> None:
    if data.digest is None:
        raise DataError(
            f"the corpus {data.name!r} is named without its digest, so nothing says which text is trained on; write "
            f"task.data as it was prepared:\n{card_text(card)}"
        )
    for field, asked in data:
        found = getattr(card, field)
        if asked and asked != found:
            raise DataError(
                f"{field} of the corpus {data.name!r} is {_shown(found)} in {folder}, and the study asks for "
                f"{_shown(asked)}; set {ENVIRONMENT} to the folder that has it, or write task.data as it was "
                f"prepared:\n{card_text(card)}"
            )


def _shown(value: object) -> str:
    return ", ".join(map(value_label, value)) if isinstance(value, tuple) else str(value)


def _documents(layout: Layout, vocab_size: int) -> tuple[MappedDocuments, MappedDocuments, pa.Table]:
    """Return the training documents, the held-out ones, and hash and bytes of the latter, in the files' order."""
    files: dict[str, list[Ids]] = {part: [] for part in PARTS}
    lengths: dict[str, list[NDArray[np.int64]]] = {part: [] for part in PARTS}
    described = []
    for number in range(len(read_json(layout.files))):
        path = layout.shard(vocab_size, number, "arrow")
        shard, documents = read_arrow(path), read_arrow(layout.documents(number))
        if len(shard) != len(documents):
            raise DataError(
                f"{path} has {len(shard)} documents, and {layout.documents(number)} has {len(documents)}; {AGAIN}"
            )
        dtype = json.loads(shard.schema.metadata[b"isoloss"])["dtype"]
        held_out_K, lengths_K = documents["held_out"].to_numpy(), shard["tokens"].to_numpy()
        for part, chosen_K in zip(PARTS, (~held_out_K, held_out_K), strict=True):
            lengths[part].append(lengths_K[chosen_K])
            tokens = int(lengths_K[chosen_K].sum())
            files[part].append(_map(layout.shard(vocab_size, number, f"{part}.bin"), dtype, tokens))
        described.append(documents.select(["hash", "bytes"]).filter(documents["held_out"]))
    train, held_out = (MappedDocuments(files[part], lengths[part]) for part in PARTS)
    return train, held_out, pa.concat_tables(described)


def _map(path: Path, dtype: str, tokens: int) -> Ids:
    if not path.is_file():
        raise DataError(f"{path} is missing; {AGAIN}")
    expected, found = tokens * np.dtype(dtype).itemsize, path.stat().st_size
    if found != expected:
        raise DataError(f"{path} has {found} bytes, and its {tokens} tokens of {dtype} need {expected}; {AGAIN}")
    if not tokens:
        return np.empty(0, dtype)  # nothing cannot be mapped
    return np.memmap(path, np.dtype(dtype).newbyteorder("<"), mode="r").view(np.ndarray)


def _values(layout: Layout, vocab_size: int, name: str) -> NDArray[Any]:
    path = layout.tokens(vocab_size, name)
    try:
        values_V: NDArray[Any] = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}; {AGAIN}") from None
    if values_V.shape != (vocab_size,):
        raise DataError(
            f"{path} has the shape {values_V.shape}, and not one value for each of {vocab_size} tokens; {AGAIN}"
        )
    return values_V
