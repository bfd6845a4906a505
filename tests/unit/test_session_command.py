"""The command that a session offers to paste must find the study again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from ledger_contract import small_study

from isoloss.run.state import State
from isoloss.session import _command


@pytest.mark.parametrize("ledgers", ["", "s3://bucket/studies?region=eu-west-1&scheme=http", "/shared/a folder"])
def test_a_command_to_paste_names_where_the_ledger_is(tmp_path: Path, ledgers: str) -> None:
    state = State(tmp_path, ledgers=ledgers)
    words = shlex.split(_command("publish", small_study(), state))
    assert words[1:5] == ["publish", "small", "--state", str(tmp_path)]
    assert words[5:] == (["--ledger", ledgers] if ledgers else [])
