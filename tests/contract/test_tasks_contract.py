"""Every task under the contract of ``task_contract.py``."""

from __future__ import annotations

from task_contract import TaskContract

from isoloss import SpamLang


class TestSpamLang(TaskContract):
    task = SpamLang(vocab_size=64, sequence_length=5)


class TestSpamLangWithItsFirstSymbolScored(TaskContract):
    task = SpamLang(vocab_size=64, sequence_length=5, scored="all")


class TestShuffledSpamLang(TaskContract):
    task = SpamLang(vocab_size=1000, sequence_length=5, mapping="shuffled")
