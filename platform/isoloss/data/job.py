"""One source file's part of the work: a JSON text, so that any process can take it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from isoloss.config.base import Listed, Part
from isoloss.config.corpus import Files, Where
from isoloss.data.layout import Layout
from isoloss.data.sources import SourceFile

Each = Callable[[str, Callable[[str], int], Sequence[str]], Iterable[int]]
"""Calls a function with each of some jobs, anywhere and in any order, and yields what they return: bytes of text.

Its first argument names the stage.
"""


def in_turn(stage: str, function: Callable[[str], int], jobs: Sequence[str]) -> Iterator[int]:
    """Call ``function`` with each job here, one after another."""
    yield from map(function, jobs)


class Job(Part):
    """One source file of a corpus in ``folder``: its place among the files, and what its scan and shards depend on."""

    folder: str
    number: int
    file: SourceFile
    source: Files
    where: Where
    separator: str
    missing: Annotated[tuple[int, ...], Listed] = ()
    """Bytes for which the tokenizer has no token."""
    vocab_sizes: Annotated[tuple[int, ...], Listed] = ()

    @property
    def layout(self) -> Layout:
        """Where its results go."""
        return Layout(Path(self.folder))
