"""The log of trials: a line of JSON for whatever happens to a trial, which neither blocks nor ends a run."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from ledger_contract import ARITHMETIC, small_result, small_study

from isoloss.run.book import Book
from isoloss.run.ledger import Ledger
from isoloss.run.trial_log import TrialLog
from isoloss.search.plan import plan


def session(folder: Path, file: Path, echo: io.StringIO | None = None) -> tuple[Book, TrialLog]:
    ledger = Ledger(folder / "ledger")
    ledger.open(small_study(), ARITHMETIC)
    book = Book(small_study(), plan(small_study()), ledger)
    log = TrialLog(small_study(), ledger, file, book.claims, echo)
    book.watchers.append(log)
    return book, log


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def fails(key: str) -> bool:
    raise OSError("the store is away")


def test_a_trial_is_followed_from_its_start_to_its_result(tmp_path: Path) -> None:
    file, echo = tmp_path / "logs" / "small.jsonl", io.StringIO()
    book, log = session(tmp_path, file, echo)
    order = book.next("a")
    assert order is not None
    log.held(order.trial.key, "small-slot-1", "10.0.0.7", 1)
    log.slot_died(order.trial.key)
    log.held(order.trial.key, "small-slot-2", "10.0.0.8", 2)
    result = small_result(order.trial.key, loss=0.01)
    result.machine.update(seconds=12.5, resumed_at=40, workers=2, device="cuda")
    book.ledger.finish(result)
    book.ended("a", "finished", "")
    log.close(5)
    started, died, finished = lines(file)
    assert [line["event"] for line in (started, died, finished)] == ["started", "slot_died", "finished"]
    assert (died["slot"], died["slot_deaths"]) == ("small-slot-1", 1)
    for line in (started, died, finished):
        assert (line["study"], line["trial"], line["number"]) == (small_study().name, order.trial.key, 0)
        assert line["cell"] == order.cell
    told = {"slot": "small-slot-2", "node": "10.0.0.8", "deliveries": 2, "slot_deaths": 1, "outcome": "converged",
            "final_loss": 0.01, "steps": result.curve.step[-1], "seconds": 12.5, "resumed_at": 40, "workers": 2,
            "device": "cuda", "ended": "budget"}  # fmt: skip
    assert {name: finished[name] for name in told} == told
    assert finished["time"].endswith("+00:00")
    assert echo.getvalue() == file.read_text()


def test_the_next_session_says_what_goes_on_and_why_a_trial_was_given_up(tmp_path: Path) -> None:
    file = tmp_path / "small.jsonl"
    book, log = session(tmp_path, file)
    book.next("a")
    log.close(5)
    book, log = session(tmp_path, file)
    first = book.next("a")
    assert first is not None
    log.running(first.claim)  # again, in another slot
    book.next("b")
    book.ended("a", "out_of_memory", "a reason\nof two lines with a \u2028 and \x1b[31m")
    log.close(5)
    told = lines(file)
    assert [line["event"] for line in told] == [
        *("started", "stopped", "resumed", "resumed", "started", "given_up", "stopped")
    ]
    assert (told[-2]["state"], told[-2]["why"]) == (
        "out_of_memory",
        "a reason\nof two lines with a \u2028 and \x1b[31m",
    )
    assert file.read_bytes().isascii()
    assert b"\x1b" not in file.read_bytes()


def test_a_disk_that_fails_and_a_result_that_cannot_be_read_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = io.StringIO()
    (tmp_path / "logs").touch()  # where the folder should be
    book, log = session(tmp_path, tmp_path / "logs" / "small.jsonl", echo)
    with caplog.at_level(logging.WARNING):
        book.next("a")
        order = book.next("b")
        assert order is not None
        monkeypatch.setattr(book.ledger, "is_finished", fails)
        log.finished(order.trial.key)
        log.close(5)
    assert ["cannot be written" in record.getMessage() for record in caplog.records] == [True]  # once
    told = [json.loads(line) for line in echo.getvalue().splitlines()]
    assert [line["event"] for line in told] == ["started", "started", "ended", "stopped"]
    assert (told[-2]["trial"], told[-2]["unread"]) == (order.trial.key, "OSError: the store is away")
