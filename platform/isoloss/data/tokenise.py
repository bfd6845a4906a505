"""Tokenising: the shards of one source file, for every vocabulary in one reading of it.

Shapes: K documents, N tokens of them, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from isoloss.data.card import DataError
from isoloss.data.documents import at_row
from isoloss.data.encoder import Encoder, EncodingError
from isoloss.data.files import read_arrow, sha256, write_arrow, writing
from isoloss.data.frozen import frozen_texts
from isoloss.data.job import Job
from isoloss.data.layout import PARTS


def tokenise_file(job: str) -> int:
    """Write the shards of a job's file and return the bytes of its documents.

    Raises DataError when a text has changed since it was scanned, or its tokens do not stand for its bytes.
    """
    it = Job.model_validate_json(job)
    frozen = read_arrow(it.layout.documents(it.number))
    held_out_K, done = frozen["held_out"].to_numpy(), 0
    with ExitStack() as files:
        shards = [_Shard(it, vocab_size, files) for vocab_size in it.vocab_sizes]
        for texts in frozen_texts(it.file, it.source, frozen):
            for shard in shards:
                try:
                    shard.add(texts, held_out_K[done : done + len(texts)])
                except EncodingError as error:
                    row = frozen["row"][done + error.index].as_py()
                    raise DataError(f"{at_row(it.file.uri, row)}: {error} ({shard.tokenizer})") from None
            done += len(texts)
    for shard in shards:
        shard.finish()
    return int(pa.compute.sum(frozen["bytes"]).as_py() or 0)


class _Shard:
    """A job's documents in one vocabulary, written to ``files`` as they come."""

    def __init__(self, job: Job, vocab_size: int, files: ExitStack) -> None:
        self.tokenizer = job.layout.tokenizer(vocab_size)
        self._job, self._vocab_size = job, vocab_size
        self._encoder = Encoder(self.tokenizer.read_text(encoding="utf-8"), job.separator)
        self._parts = [_HashedFile(files.enter_context(writing(self._path(f"{part}.bin")))) for part in PARTS]
        self._lengths: list[np.ndarray] = []
        self._counts_V = np.zeros(vocab_size, np.int64)

    def add(self, texts: list[str], held_out_K: np.ndarray) -> None:
        tokens_N, lengths_K = self._encoder.encode(texts)
        held_out_N = np.repeat(held_out_K, lengths_K)
        for part, chosen_N in zip(self._parts, (~held_out_N, held_out_N), strict=True):
            part.write(tokens_N[chosen_N])
        self._lengths.append(lengths_K)
        self._counts_V += np.bincount(tokens_N, minlength=self._vocab_size)

    def finish(self) -> None:
        """Write how often each token occurs, then how many each document has: with that the shard is complete."""
        with writing(self._path("counts.npy")) as file:
            np.save(file, self._counts_V)
        described = {
            "dtype": np.dtype(self._encoder.dtype).name,
            "separator": self._encoder.separator,
            **{f"{part}_sha256": file.digest for part, file in zip(PARTS, self._parts, strict=True)},
            "tokenizer": sha256(self.tokenizer),
            "documents": sha256(self._job.layout.documents(self._job.number)),
        }
        schema = pa.schema({"tokens": pa.int64()}, metadata={"isoloss": json.dumps(described)})
        batches = [pa.record_batch([lengths_K], schema=schema) for lengths_K in self._lengths]
        write_arrow(self._path("arrow"), schema, batches)

    def _path(self, ending: str) -> Path:
        return self._job.layout.shard(self._vocab_size, self._job.number, ending)


class _HashedFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, tokens_N: np.ndarray) -> None:
        data = tokens_N.astype(tokens_N.dtype.newbyteorder("<"), copy=False).data
        self._file.write(data)
        self._hash.update(data)
