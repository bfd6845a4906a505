from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger_contract import ARITHMETIC, LedgerContract, small_study
from pyarrow import fs
from s3_server import BUCKET, serve_s3

from isoloss.run import lease, store
from isoloss.run.lease import ASKING, HELD, Lease, entries
from isoloss.run.ledger import Ledger
from isoloss.run.store import HeldError, LedgerError, ObjectStore, open_store, sealed


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
        ledger.store.filesystem = DiesBeforeMoving()
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

    def test_a_full_disk_is_waited_for(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger.open(small_study(), ARITHMETIC)

        class Full:  # writing to /dev/full fails as on a full disk
            def __getattr__(self, name: str) -> Any:
                return getattr(fs.LocalFileSystem(), name)

            def open_output_stream(self, path: str) -> Any:
                return fs.LocalFileSystem().open_output_stream("/dev/full" if len(waits) < 2 else path)

        waits: list[float] = []
        monkeypatch.setattr(store.time, "sleep", waits.append)
        ledger.store.filesystem = Full()
        ledger.save_checkpoint("ab", b"after a while")
        assert len(waits) == 2
        assert self.again(ledger).checkpoint("ab") == b"after a while"
        assert not list(Path(ledger.store.scratch).iterdir())

    def test_what_does_not_pass_is_not_waited_for(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store.time, "sleep", lambda seconds: pytest.fail("it waited"))
        ledger.open(small_study(), ARITHMETIC)

        class Denied(DiesBeforeMoving):
            def move(self, source: str, target: str) -> None:
                raise OSError(errno.EACCES, "no permission")

        ledger.store.filesystem = Denied()
        with pytest.raises(LedgerError, match=r"cannot use the ledger at .*: .* no permission"):
            ledger.save_checkpoint("ab", b"")

    def test_a_file_that_is_replaced_while_it_is_read_is_read_again(self, ledger: Ledger) -> None:
        ledger.open(small_study(), ARITHMETIC)
        ledger.save_checkpoint("ab", b"new")
        seen = [sealed(b"the old one")[:50], sealed(b"old")[:10] + sealed(b"new")[10:]]  # of both, as a bucket may give

        class Torn:
            def __getattr__(self, name: str) -> Any:
                return getattr(fs.LocalFileSystem(), name)

            def open_input_stream(self, path: str) -> Any:
                return io.BytesIO(seen.pop(0)) if seen else fs.LocalFileSystem().open_input_stream(path)

        ledger.store.filesystem = Torn()
        assert ledger.checkpoint("ab") == b"new"
        assert seen == []


@pytest.fixture(scope="module")
def s3() -> Iterator[fs.S3FileSystem]:
    with serve_s3() as filesystem:
        yield filesystem


@pytest.mark.slow
class TestS3(LedgerContract):
    @pytest.fixture
    def ledger(self, s3: fs.S3FileSystem, tmp_path: Path) -> Ledger:
        return Ledger(f"s3://{BUCKET}/{tmp_path.name}/ledger?region=us-east-1")

    def again(self, ledger: Ledger) -> Ledger:
        return Ledger(ledger.root)

    def read(self, ledger: Ledger, name: str) -> bytes:
        with ledger.store.filesystem.open_input_stream(ledger.store.path(name)) as stream:
            return bytes(stream.read())

    def write(self, ledger: Ledger, name: str, data: bytes) -> None:
        with ledger.store.filesystem.open_output_stream(ledger.store.path(name)) as stream:
            stream.write(data)

    def test_a_driver_that_expired_is_taken_over_and_fenced(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "BEAT_SECONDS", 1000.0)  # as if it were stopped
        monkeypatch.setattr(lease, "EXPIRY_SECONDS", -10.0)
        cell, trial = next(small_study().trials())
        (other, second) = list(small_study().trials())[-1]
        later = self.again(ledger)
        with ledger.driver(small_study(), ARITHMETIC):
            stale = ledger._hold
            with later.driver(small_study(), ARITHMETIC):
                # The stalled one writes a claim of the same number, before the later one and after it.
                ledger.claim(0, trial.key, cell, trial.replicate)
                later.claim(0, second.key, other, second.replicate)
                ledger.claim(0, trial.key, cell, trial.replicate)
                assert [claim.key for claim in self.again(ledger).claims()] == [second.key]
                monkeypatch.setattr(lease, "BEAT_SECONDS", -1.0)  # it looks again
                assert isinstance(stale, Lease)
                with pytest.raises(LedgerError, match=r"another driver \(process .*\) has taken over"):
                    ledger.claim(1, trial.key, cell, trial.replicate)

    def test_epochs_rise_from_driver_to_driver(self, ledger: Ledger) -> None:
        seen = []
        for _ in range(3):
            with self.again(ledger).driver(small_study(), ARITHMETIC):
                seen += [entry.epoch for entry in entries(ledger.store, "driver") if entry.state == HELD]
        assert seen == [1, 2, 3]
        assert len(entries(ledger.store, "driver")) == 1, "old entries stay"

    def test_of_many_who_start_at_once_one_at_a_time_holds(self, ledger: Ledger) -> None:
        holding, most, refused = 0, 0, 0
        count = threading.Lock()

        def one() -> None:
            nonlocal holding, most, refused
            try:
                with self.again(ledger).store.hold("driver"):
                    with count:
                        holding += 1
                        most = max(most, holding)
                    gone.wait(1.5)
                    with count:
                        holding -= 1
            except HeldError:
                refused += 1

        gone = threading.Event()
        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1
        assert refused >= 1

    def test_a_driver_that_was_killed_here_holds_nothing(self, ledger: Ledger) -> None:
        code = (
            "import os, sys; from isoloss.run.store import open_store\n"
            "open_store(sys.argv[1]).hold('driver').__enter__(); os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", code, ledger.root], check=True)
        [entry] = entries(ledger.store, "driver")
        assert entry.state == HELD
        assert ledger.driven_by() == ""
        elsewhere = json.dumps({"state": HELD, "owner": "x", "process": {**entry.process, "machine": "another"}})
        ledger.store.write(f"leases/driver/{entry.name}.json", elsewhere.encode())
        with pytest.raises(LedgerError, match=r"another driver is running this study \(x\)"):
            ledger.driver(small_study(), ARITHMETIC).__enter__()
        here = json.dumps({"state": HELD, "owner": "x", "process": entry.process})
        ledger.store.write(f"leases/driver/{entry.name}.json", here.encode())
        with ledger.driver(small_study(), ARITHMETIC):
            pass

    def test_who_asked_and_died_does_not_hold_for_ever(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = Lease(ledger.store, "driver")
        assert asked._ask() == []
        assert [entry.state for entry in entries(ledger.store, "driver")] == [ASKING]
        assert ledger.driven_by() == ""
        monkeypatch.setattr(lease, "EXPIRY_SECONDS", -10.0)
        with ledger.driver(small_study(), ARITHMETIC):
            pass


def test_a_store_that_is_away_is_waited_for(s3: fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(f"s3://{BUCKET}/away?region=us-east-1")
    ledger.open(small_study(), ARITHMETIC)
    there = ledger.store.filesystem

    class Away:
        def __getattr__(self, name: str) -> Any:
            if len(waits) < 3:
                raise OSError("AWS Error NETWORK_CONNECTION during PutObject operation")
            return getattr(there, name)

    waits: list[float] = []
    monkeypatch.setattr(store.time, "sleep", waits.append)
    ledger.store.filesystem = Away()
    ledger.save_checkpoint("ab", b"after a while")
    assert waits == [0.25, 0.5, 1.0]
    assert Ledger(ledger.root).checkpoint("ab") == b"after a while"


def test_a_bucket_that_is_not_there_is_said_at_once(s3: fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.time, "sleep", lambda seconds: pytest.fail("it waited"))
    ledger = Ledger("s3://nowhere/ledger?region=us-east-1")
    with pytest.raises(LedgerError, match="To create buckets"):
        ledger.open(small_study(), ARITHMETIC)
    with pytest.raises(LedgerError, match="there is no bucket 'nowhere'"):
        ledger.finished()


def test_an_upload_that_is_cut_short_leaves_the_old_file(s3: fs.S3FileSystem) -> None:
    ledger = Ledger(f"s3://{BUCKET}/cut?region=us-east-1")
    ledger.open(small_study(), ARITHMETIC)
    ledger.save_checkpoint("ab", b"whole")
    code = (
        "import os, sys; from isoloss.run.store import open_store; store = open_store(sys.argv[1])\n"
        "stream = store.filesystem.open_output_stream(store.path('checkpoints/ab.pt'))\n"
        "stream.write(bytes(12_000_000)); os._exit(0)"  # parts have gone, as when it is killed before the last one
    )
    subprocess.run([sys.executable, "-c", code, ledger.root], check=True)
    assert Ledger(ledger.root).checkpoint("ab") == b"whole"


def test_an_address_says_which_store(tmp_path: Path, s3: fs.S3FileSystem) -> None:
    assert open_store(tmp_path).uri == open_store(f"file://{tmp_path}").uri == str(tmp_path)
    bucket = open_store("s3://bucket/a/b/?region=us-east-1")
    assert isinstance(bucket, ObjectStore)
    assert bucket.path("study.json") == "bucket/a/b/study.json"
    assert open_store("gs://bucket/a").path("study.json") == "bucket/a/study.json"
    for wrong, why in (
        ("ftp://host/x", "neither a folder nor an address of s3, gs, gcs or file"),
        ("s3://key:secret@bucket/x", "must not hold keys"),
        ("s3://", "names no bucket"),
        ("s3://bucket/x?colour=red", "cannot use the ledger at"),
    ):
        with pytest.raises(LedgerError, match=why):
            open_store(wrong)


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LedgerError, match="cannot use the ledger at"),
        Ledger(tmp_path / "file" / "ledger").driver(small_study(), ARITHMETIC),
    ):
        pass


def test_files_can_be_read_without_isoloss(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.open(small_study(), ARITHMETIC)
    first = (tmp_path / "study.json").read_text().splitlines()[0]
    assert json.loads(first)["study"]["name"] == "small"
