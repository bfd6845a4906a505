"""Every task under the contract of ``task_contract.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_corpus import prepare_small
from task_contract import TaskContract

from isoloss import SpamLang, Text


class TestSpamLang(TaskContract):
    task = SpamLang(vocab_size=64, sequence_length=5)


class TestSpamLangWithItsFirstSymbolScored(TaskContract):
    task = SpamLang(vocab_size=64, sequence_length=5, scored="all")


class TestShuffledSpamLang(TaskContract):
    task = SpamLang(vocab_size=1000, sequence_length=5, mapping="shuffled")


class TestText(TaskContract):
    draws_held_out = False

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def corpus(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder: Path = tmp_path_factory.mktemp("data")
        cls.task = Text(data=prepare_small(folder), vocab_size=400, sequence_length=7)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ISOLOSS_DATA", str(folder))
            yield
