"""Stores: where a ledger's files are, a folder or a bucket; each file is replaced whole and carries its hash."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pyarrow import fs

from isoloss.errors import IsolossError

log = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE_SECONDS = 180.0
"""How long a store that has gone away, or a disk that is full, is waited for."""

FIRST_SECONDS = 20.0
"""The same for a store that has not answered yet: its address or the keys may be wrong."""

READS = 4
"""Times that a file is read before it counts as damaged."""

READERS = 32
"""Files of a bucket that are read at the same time."""

SCRATCH = "scratch"
SCHEMES = ("s3", "gs", "gcs")

_MARK = b"\nsha256:"
_SEAL = len(_MARK) + 64 + 1

_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.EINTR}
_FINAL = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403",
          "To create buckets")  # fmt: skip


class LedgerError(IsolossError):
    """The ledger cannot be used as asked; the message says why and what would help."""


class HeldError(LedgerError):
    """Another process holds what was to be held; ``holder`` says which."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def who() -> str:
    """Return this process in words."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def sealed(data: bytes) -> bytes:
    """Return the bytes with their hash behind them."""
    return data + _MARK + hashlib.sha256(data).hexdigest().encode() + b"\n"


def is_sealed(data: bytes) -> bool:
    """Say whether the bytes are followed by their hash."""
    return data == sealed(data[:-_SEAL])


def unsealed(data: bytes, name: str) -> bytes:
    """Return what was sealed; raises LedgerError when the bytes are not those that were written."""
    if not is_sealed(data):
        raise LedgerError(
            f"{name} is damaged: its contents do not match their hash; bring it back from a backup, or remove it and "
            "run the study again"
        )
    return data[:-_SEAL]


class Hold(ABC):
    """The right of one process to a name in a store, while the context that gave it lasts.

    ``epoch`` is higher than that of every earlier holder, where holders may outlive their right, and 0 where none can.
    """

    epoch = 0

    @abstractmethod
    def check(self) -> None:
        """Raise HeldError when the right has gone to another."""


class Store(ABC):
    """Files below one root. ``uri`` opens the same store again, in any process that sees it.

    What cannot be done, also after some patience, raises LedgerError. A store that has ``answered``, to this process or
    to another, is waited for longer than one whose address may be wrong.
    """

    def __init__(self, uri: str, filesystem: fs.FileSystem, path: str, answered: bool) -> None:
        self.uri, self.filesystem, self._path, self._answered = uri, filesystem, path, answered

    @property
    def scratch(self) -> str:
        """A folder of the ``filesystem`` for what nobody needs once its driver is gone."""
        return self.path(SCRATCH)

    def path(self, name: str) -> str:
        """Return the path of a file on the ``filesystem``."""
        return f"{self._path}/{name}"

    def read(self, name: str) -> bytes | None:
        """Return a file's contents, or None when there is none; raises LedgerError when they are damaged."""

        def whole() -> bytes | None:
            try:
                with self.filesystem.open_input_stream(self.path(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

        for _ in range(READS):
            data = self._patiently(whole)
            # A bucket's file may be replaced between the requests that read it: then its contents are of both.
            if data is None or is_sealed(data):
                break
        return None if data is None else unsealed(data, f"{self.uri}/{name}")

    def read_all(self, names: Iterable[str]) -> Iterator[bytes | None]:
        """Yield the contents of each of the files, in order."""
        return map(self.read, names)

    def write(self, name: str, data: bytes) -> None:
        """Make or replace a file; whoever reads it meanwhile sees the old contents or the new, whole."""
        self._patiently(lambda: self._replace(name, sealed(data)))

    def exists(self, name: str) -> bool:
        """Say whether there is a file of this name."""
        return bool(self._patiently(lambda: self.filesystem.get_file_info(self.path(name))).type == fs.FileType.File)

    def names(self, folder: str, ending: str = "") -> list[str]:
        """Return the names in a folder that have this ending, without it."""
        return [info.base_name.removesuffix(ending) for info in self.files(folder) if info.base_name.endswith(ending)]

    def files(self, folder: str) -> list[Any]:
        """Return pyarrow's FileInfo of everything in a folder."""
        selector = fs.FileSelector(self.path(folder) if folder else self._path, allow_not_found=True)
        return list(self._patiently(lambda: self.filesystem.get_file_info(selector)))

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self.filesystem.delete_file(self.path(name))

        self._patiently(remove)

    def clear_scratch(self) -> None:
        """Make the scratch folder, or empty it."""
        self._patiently(lambda: self.filesystem.create_dir(self.scratch, recursive=True))
        if self.files(SCRATCH):
            self._patiently(lambda: self.filesystem.delete_dir_contents(self.scratch))

    @abstractmethod
    def hold(self, name: str) -> AbstractContextManager[Hold]:
        """Hold a name as the only process; raises HeldError while another does."""

    @abstractmethod
    def holder(self, name: str) -> str:
        """Return who holds a name now, or an empty text."""

    @abstractmethod
    def _replace(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def _passes(self, error: OSError) -> bool:
        """Say whether it may go again later."""

    def _patiently(self, action: Callable[[], T]) -> T:
        """Do it, waiting while what hinders it may pass."""
        begun, pause = time.monotonic(), 0.25
        while True:
            try:
                done = action()
                self._answered = True
                return done
            except OSError as error:
                patience = PATIENCE_SECONDS if self._answered else FIRST_SECONDS
                if not self._passes(error) or time.monotonic() - begun > patience:
                    raise LedgerError(f"cannot use the ledger at {self.uri}: {error}") from None
                log.warning("the ledger at %s cannot be used now (%s); trying again", self.uri, error)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


class _FolderHold(Hold):
    def check(self) -> None:
        pass


class FolderStore(Store):
    """A local or shared folder. Files are moved into place; a lock is the kernel's and ends with its process."""

    def __init__(self, folder: Path, answered: bool) -> None:
        super().__init__(str(folder), fs.LocalFileSystem(), str(folder), answered)

    @contextmanager
    def hold(self, name: str) -> Iterator[Hold]:
        lock = Path(self._path, f"{name}.lock")
        self._patiently(lambda: lock.parent.mkdir(parents=True, exist_ok=True))
        with self._patiently(lambda: lock.open("a+")) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise HeldError(file.read().strip() or "starting") from None
            file.truncate(0)
            file.write(who())
            file.flush()
            try:
                yield _FolderHold()
            finally:
                file.truncate(0)

    def holder(self, name: str) -> str:
        try:
            with open(f"{self._path}/{name}.lock") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read().strip()
        except OSError:
            pass
        return ""

    def _replace(self, name: str, data: bytes) -> None:
        target = Path(self.path(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path(f"{SCRATCH}/{uuid.uuid4().hex}")
        try:
            with self.filesystem.open_output_stream(temporary) as stream:
                stream.write(data)
            self.filesystem.move(temporary, str(target))
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _passes(self, error: OSError) -> bool:
        return error.errno in _PASSING


class ObjectStore(Store):
    """A prefix of a bucket. An upload becomes visible whole; who may write a name is settled by leases."""

    def read_all(self, names: Iterable[str]) -> Iterator[bytes | None]:
        waiting = list(names)
        with ThreadPoolExecutor(READERS) as readers:
            # Some at a time: contents that nobody has taken yet fill memory.
            for start in range(0, len(waiting), 4 * READERS):
                yield from readers.map(self.read, waiting[start : start + 4 * READERS])

    def files(self, folder: str) -> list[Any]:
        found = super().files(folder)
        bucket = self._path.partition("/")[0]
        if not found and self._patiently(lambda: self.filesystem.get_file_info(bucket)).type == fs.FileType.NotFound:
            raise LedgerError(f"there is no bucket {bucket!r} for the ledger at {self.uri}; make it first")
        return found

    def hold(self, name: str) -> AbstractContextManager[Hold]:
        from isoloss.run.lease import Lease

        return Lease(self, name)

    def holder(self, name: str) -> str:
        from isoloss.run.lease import holder

        return holder(self, name)

    def _replace(self, name: str, data: bytes) -> None:
        # All in one write: a stream that is closed, by whatever, completes the upload of what it was given.
        with self.filesystem.open_output_stream(self.path(name)) as stream:
            stream.write(data)

    def _passes(self, error: OSError) -> bool:
        return not isinstance(error, FileNotFoundError) and not any(word in str(error) for word in _FINAL)


def open_store(uri: str | Path, answered: bool = False) -> Store:
    """Return the store at a folder, ``file://``, ``s3://`` or ``gs://`` address, which may have ``answered`` before.

    Credentials, region and endpoint are those that pyarrow finds (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, the
    machine's role, ...), or parameters of the address, as in ``s3://bucket/prefix?region=eu-west-1``. Raises
    LedgerError for other addresses, and for one that holds a secret, since addresses are shown and recorded.
    """
    text = str(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return FolderStore(Path(text).absolute(), answered)
    if scheme == "file":
        return FolderStore(Path(rest or "/").absolute(), answered)
    if scheme not in SCHEMES:
        raise LedgerError(f"--ledger {text!r} is neither a folder nor an address of {', '.join(SCHEMES)} or file")
    if "@" in rest.partition("?")[0]:
        raise LedgerError(
            "the address of a ledger must not hold keys, since it is shown and recorded: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (or the store's own variables) in the environment"
        )
    address, _, parameters = text.rstrip("/").partition("?")
    if not address.partition("://")[2].strip("/"):
        raise LedgerError(f"--ledger {text!r} names no bucket")
    # Small files go in one request instead of three.
    if scheme == "s3":
        parameters = "&".join(filter(None, (parameters, "allow_delayed_open=true")))
    try:
        filesystem, path = fs.FileSystem.from_uri(f"{address}?{parameters}".rstrip("?"))
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot use the ledger at {text}: {error}") from None
    return ObjectStore(text.rstrip("/"), filesystem, path, answered)
