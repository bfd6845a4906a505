"""How a run is stopped: what signals do, whom the driver waits for, and for how long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from isoloss.run.stopping import STOP_SECONDS, Stopping


class Run:
    """A run of Tune, its mailboxes and the time."""

    def __init__(self) -> None:
        self.time, self.paused, self.ended = 0.0, [], False
        self.stopping = Stopping(self.pause, self.end, lambda: self.time)

    def pause(self, mailbox: str) -> None:
        if mailbox == "gone":
            raise ValueError("no such actor")
        self.paused.append(mailbox)

    def end(self) -> None:
        self.ended = True


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_for_a_stop_and_the_second_is_the_process_s_own(number: signal.Signals) -> None:
    heard = []
    signal.signal(number, lambda number, frame: heard.append(number))
    run = Run()
    with run.stopping:
        assert not run.stopping.asked
        signal.raise_signal(number)
        assert run.stopping.asked
        assert heard == []
        signal.raise_signal(number)
        assert heard == [number]
    signal.raise_signal(number)
    assert heard == [number] * 2


def test_handlers_are_put_back_after_the_run() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Run().stopping:
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_each_running_trial_is_paused_once_and_tune_ends_when_all_have_saved() -> None:
    run = Run()
    run.stopping.tick(["a", "b", "gone", None])
    run.stopping.tick([None])
    assert not run.ended, "one has not been heard of yet"
    run.stopping.tick(["a", "c"])
    assert sorted(run.paused) == ["a", "b", "c"]
    assert not run.ended
    run.stopping.tick([])
    assert run.ended


def test_a_trial_that_does_not_save_is_not_waited_for_longer(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    run.stopping.tick(["a"])
    run.time = STOP_SECONDS - 1
    run.stopping.tick(["a"])
    assert not run.ended
    run.time = STOP_SECONDS + 1
    run.stopping.tick(["a"])
    assert run.ended
    assert "trials that were not saved in time, and go on from an earlier state: 1" in caplog.text


def test_the_driver_pauses_the_slots_of_running_trials_and_waits_for_those_it_has_not_heard_of() -> None:
    from isoloss.run.driver import _Listener

    run, book = Run(), SimpleNamespace(watchers=[], progress=lambda slot, points: None)
    listener = _Listener(book, lambda book: None, run.stopping)
    busy, new, waiting = (
        SimpleNamespace(trial_id=name, status=status, config={"key": name})
        for name, status in (("busy", "RUNNING"), ("new", "RUNNING"), ("waiting", "PENDING"))
    )
    news = {"slot": "s", "node": "", "deliveries": 1, "placement": "", "points": []}

    def step() -> None:
        listener.on_step_end(1, [busy, new, waiting])

    listener.on_trial_result(1, [], busy, {**news, "mailbox": "one", "done": False})
    step()
    assert not run.paused, "nobody has asked for a stop"
    run.stopping.asked = True
    step()
    assert run.paused == ["one"]
    listener.on_trial_result(1, [], busy, {**news, "mailbox": "one", "done": True})
    busy.status = "TERMINATED"
    step()
    assert not run.ended, "the new one has not saved its state"
    listener.on_trial_result(1, [], new, {**news, "mailbox": "two", "done": False})
    step()
    assert run.paused == ["one", "two"]
    new.status = "TERMINATED"
    step()
    assert run.ended
