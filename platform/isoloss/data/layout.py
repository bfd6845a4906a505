"""Where things lie in the folder of a prepared corpus."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from isoloss.data.card import CARD

PARTS = ("train", "held_out")
"""The documents of a shard."""


class Layout(NamedTuple):
    """The files of one corpus's folder; ``number`` is a source file's place in ``files.json``."""

    root: Path

    @property
    def request(self) -> Path:
        """What was asked for: the format and the corpus, as JSON."""
        return self.root / "request.json"

    @property
    def files(self) -> Path:
        """The source files, in their order, as JSON."""
        return self.root / "files.json"

    @property
    def summary(self) -> Path:
        """What was kept and dropped, as JSON; its existence says that all documents are frozen."""
        return self.root / "documents" / "summary.json"

    @property
    def manifest(self) -> Path:
        """All of it described, as JSON."""
        return self.root / "manifest.json"

    @property
    def card(self) -> Path:
        """The ``Prepared`` value, as JSON; written last."""
        return self.root / CARD

    def scan(self, number: int) -> Path:
        """A row for each document of a source file."""
        return self.root / "scan" / f"{number:05}.arrow"

    def documents(self, number: int) -> Path:
        """A row for each frozen document of a source file."""
        return self.root / "documents" / f"{number:05}.arrow"

    def tokenizer(self, vocab_size: int) -> Path:
        """A tokenizer.json."""
        return self.root / "tokenizers" / f"{vocab_size}.json"

    def tokens(self, vocab_size: int, name: str) -> Path:
        """One of the files of a vocabulary: ``counts.npy``, ``bytes.npy``."""
        return self.root / "tokens" / str(vocab_size) / name

    def shard(self, vocab_size: int, number: int, ending: str) -> Path:
        """One of the files of a shard: ``train.bin``, ``held_out.bin``, ``counts.npy``, or ``arrow``, written last."""
        return self.tokens(vocab_size, f"{number:05}.{ending}")
