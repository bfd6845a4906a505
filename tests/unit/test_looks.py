"""When workers look up together, and how training stops at a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from operator import sub
from typing import Any

import pytest

from isoloss import AdamW, Decoder, Evaluation, Linear, SpamLang, Steps
from isoloss.result import Result
from isoloss.study import Trial
from isoloss.train import looks
from isoloss.train.looks import LOOK_SECONDS, Decision, Looks
from isoloss.train.loop import Stopped, train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

TRIAL = Trial(
    task=SpamLang(vocab_size=8, sequence_length=4),
    model=Decoder(width=16, depth=1, attention_heads=2, kv_heads=1),
    head=Linear(),
    optimizer=AdamW(learning_rate=0.03),
    budget=Steps(14, batch_size=8),
    evaluation=Evaluation(sequences=16, points=6),
)


class Wire:
    """Two workers' exchange in one process: what the first sends, the second receives."""

    count = 2

    def __init__(self, rank: int, sent: list[Any]) -> None:
        self.rank, self.sent, self.received = rank, sent, 0

    def from_first(self, value: Any) -> Any:
        if self.rank == 0:
            self.sent.append(value)
            return value
        self.received += 1
        return self.sent[self.received - 1]


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(looks, "time", clock)
    return clock


def numbers(result: Result) -> bytes:
    return replace(result, machine={}).to_bytes()


@pytest.mark.parametrize("update_seconds", [0.002, 0.1, 3.0])
def test_two_workers_look_about_twice_a_second_and_agree(clock: Clock, update_seconds: float) -> None:
    sent: list[Decision] = []
    asked: list[float] = []

    def stop() -> bool:
        asked.append(clock.now)
        return clock.now > 100

    first, second = (Looks(Wire(rank, sent), 30.0, stop) for rank in (0, 1))  # type: ignore[arg-type]
    saved: list[float] = []
    for _ in range(100_000):
        decision = first()
        assert second() == decision
        if decision.save:
            saved.append(clock.now)
            first.has_saved()
            second.has_saved()
        if decision.stop:
            break
        clock.now += update_seconds
    assert len(asked) == len(sent)
    apart = [late - early for early, late in pairwise(asked)]
    longest = max(LOOK_SECONDS, update_seconds)
    assert max(apart) <= longest + 1e-6
    assert apart[-1] >= 0.7 * longest
    assert 100 < clock.now <= 100 + 2 * longest
    assert len(saved) == 3
    assert all(30 <= seconds <= 30 + longest + 1e-6 for seconds in map(sub, saved, [0.0, *saved]))


def test_a_worker_alone_looks_before_every_update(clock: Clock) -> None:
    alone, decisions = Looks(Workers(), 1.0, lambda: clock.now > 4.25), []
    for _ in range(20):
        decisions.append(alone())
        if decisions[-1].save:
            alone.has_saved()
        clock.now += 0.25
    assert [number for number, decision in enumerate(decisions) if decision.save] == [4, 8, 12, 16]
    assert [number for number, decision in enumerate(decisions) if decision.stop] == [18, 19]


def test_two_workers_that_save_after_every_update_look_before_every_one(clock: Clock) -> None:
    sent: list[Decision] = []
    first = Looks(Wire(0, sent), 0.0, lambda: False)  # type: ignore[arg-type]
    for _ in range(50):
        assert first().save
        clock.now += 0.001
    assert len(sent) == 50


def test_training_stops_at_a_checkpoint_and_goes_on_to_the_same_bytes() -> None:
    whole = train(TRIAL, Settings())
    saved: list[bytes] = []
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    with pytest.raises(Stopped):
        train(TRIAL, Settings(checkpoint_seconds=1000), save=saved.append, stop=stop)
    assert len(saved) == 1
    resumed = train(TRIAL, Settings(), checkpoint=saved[0])
    assert resumed.machine["resumed_at"] == 5
    assert numbers(resumed) == numbers(whole)


def test_a_trial_that_is_stopped_before_it_went_on_saves_nothing() -> None:
    saved: list[bytes] = []
    with pytest.raises(Stopped):
        train(TRIAL, Settings(checkpoint_seconds=0), save=saved.append, stop=lambda: True)
    assert saved == []
    train(TRIAL, Settings(checkpoint_seconds=0), save=saved.append)
    checkpoint = saved[3]
    with pytest.raises(Stopped):
        train(TRIAL, Settings(checkpoint_seconds=0), checkpoint=checkpoint, save=saved.append, stop=lambda: True)
    assert len(saved) == 13
