from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ledger_contract import ARITHMETIC, LedgerContract, small_study
from pyarrow import fs

from isoloss.run.ledger import Ledger, LedgerError


class DiesBeforeMoving:
    """A local file system whose process dies when a file has been written, but not yet put in its place."""

    def __getattr__(self, name: str) -> Any:
        return getattr(fs.LocalFileSystem(), name)

    def move(self, source: str, target: str) -> None:
        raise KeyboardInterrupt


class TestLocalFolder(LedgerContract):
    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return Ledger(tmp_path / "ledger")

    def again(self, ledger: Ledger) -> Ledger:
        return Ledger(ledger.root)

    def read(self, ledger: Ledger, name: str) -> bytes:
        return Path(ledger.root, name).read_bytes()

    def write(self, ledger: Ledger, name: str, data: bytes) -> None:
        Path(ledger.root, name).write_bytes(data)

    def test_a_write_that_dies_half_way_leaves_the_old_file(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        ledger.save_checkpoint("ab", b"whole")
        ledger._fs = DiesBeforeMoving()
        with pytest.raises(KeyboardInterrupt):
            ledger.save_checkpoint("ab", b"torn")
        assert self.again(ledger).checkpoint("ab") == b"whole"

    def test_a_dead_driver_holds_nothing(self, ledger: Ledger) -> None:
        child = os.fork()
        if child == 0:
            ledger.driver(small_study(), ARITHMETIC).__enter__()
            os._exit(0)  # as abrupt as a kill: nothing is cleaned up
        os.waitpid(child, 0)
        with ledger.driver(small_study(), ARITHMETIC):
            pass


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LedgerError, match="cannot write the ledger folder"),
        Ledger(tmp_path / "file" / "ledger").driver(small_study(), ARITHMETIC),
    ):
        pass
    with pytest.raises(LedgerError, match="object stores are not supported"):
        Ledger("s3://bucket/ledger")
