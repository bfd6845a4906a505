"""Whether the place of the ledgers can hold them: what is written is read, listed, replaced, removed and held."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from isoloss.checkup import Check
from isoloss.run.state import State
from isoloss.run.store import HeldError, LedgerError, Store, open_store

SIGN = "checkup"


@contextmanager
def sign_in(place: State) -> Iterator[tuple[Store, str]]:
    """Write a file, whose text nobody else can know, where ledgers are; yield its store and the text, and remove both.

    Raises LedgerError when it cannot be written.
    """
    store, text = place.ledger(f"checkup-{uuid.uuid4().hex}").store, uuid.uuid4().hex
    try:
        store.clear_scratch()
        store.write(SIGN, text.encode())
        yield store, text
    finally:
        with suppress(OSError):
            store.filesystem.delete_dir(posixpath.dirname(store.path(SIGN)))


def seen_from_here(address: str, text: str) -> tuple[bool, bool]:
    """Return whether this process reads the sign at ``address``, and, if so, whether it writes beside it."""
    try:
        store = open_store(address)
        if store.read(SIGN) != text.encode():
            return False, False  # and nothing is written into what may be some other folder
        beside = f"{SIGN}-{uuid.uuid4().hex}"
        store.write(beside, text.encode())
        store.delete(beside)
    except LedgerError:
        return False, False
    return True, True


def check_store(place: State) -> Check:
    """Say whether ledgers can be kept where ``place`` says, a bucket or a folder."""
    try:
        with sign_in(place) as (store, text):
            wrong = _wrong(store, text)
    except LedgerError as error:
        return Check("ledger", "failed", str(error))
    if wrong:
        return Check("ledger", "failed", f"{place.ledgers}: {wrong}; choose another --ledger")
    return Check("ledger", "ok", f"{place.ledgers}: files are read, listed, replaced and removed, and one driver holds")


def _wrong(store: Store, text: str) -> str:
    """Return what a store does not do that a ledger needs, or an empty text."""
    if store.read(SIGN) != text.encode():
        return "what was written is not read back"
    store.write(SIGN, b"new")
    if store.read(SIGN) != b"new":
        return "a file that was replaced still reads as before"
    if SIGN not in store.names(""):
        return "what was written is not listed"
    with store.hold("driver"):
        try:
            with open_store(store.uri).hold("driver"):
                return "two drivers could run one study"
        except HeldError:
            pass
    store.delete(SIGN)
    return "what was removed is still there" if store.exists(SIGN) else ""
