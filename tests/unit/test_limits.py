"""Limits on a fake clock: what is counted, what is recorded beforehand, when nothing more starts and when all stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, SpamLang, Steps, Study
from isoloss.errors import UsageError
from isoloss.outcome import Curve
from isoloss.result import Result
from isoloss.run.book import Book
from isoloss.run.cost import Costs
from isoloss.run.ledger import Ledger
from isoloss.run.limits import LATE_SECONDS, STOPPING_SECONDS, Limit, LimitError, Spending, limit_of
from isoloss.run.settings import RunSettings
from isoloss.search.plan import plan
from isoloss.study import Trial
from isoloss.train.settings import Settings

STUDY = Study(
    name="limits",
    question="Does it stop in time?",
    task=SpamLang(vocab_size=8, sequence_length=4),
    model=Decoder(width=8, depth=1, attention_heads=1),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-3),
    budget=Steps(4, batch_size=2),
    axes={"optimizer.learning_rate": Choice(*(0.001 * i for i in range(1, 11)))},
    evaluation=Evaluation(sequences=2, points=4),
)
RESERVE = STOPPING_SECONDS + LATE_SECONDS


class Session:
    """One session of a driver on a clock that only ``wait`` moves."""

    def __init__(
        self, folder: Path, limit: Limit | None, settings: RunSettings | None = None, costs: Costs | None = None
    ) -> None:
        self.now, self.stopped = 1000.0, 0
        self.ledger = Ledger(folder)
        self.ledger.open(STUDY, {"device": "cpu"})
        self.book = Book(STUDY, plan(STUDY), self.ledger)
        self.spending = Spending(
            self.book, settings or RunSettings(), limit, costs or Costs("cpu"), lambda: self.now, self.stop
        )
        self.book.watchers.append(self.spending)
        self.book.allows = self.spending.allows

    def stop(self) -> None:
        self.stopped += 1

    def wait(self, seconds: float) -> None:
        """Let time pass, in the driver's ticks of half a second."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            self.spending.tick(self.book)

    def finish(self, slot: str, seconds: float = 100.0) -> None:
        trial = self.book.running[slot].trial
        self.ledger.finish(result(trial, seconds))
        self.book.ended(slot, "finished", "")

    @property
    def recorded(self) -> float:
        """Seconds of a slot in the ledger."""
        return 3600 * self.ledger.spent("cpu").hours


def result(trial: Trial, seconds: float) -> Result:
    return Result(trial.key, trial.canonical, Curve((0, 4), (2.0, 1.0), (0.1, 0.1), 0.0), {}, {"seconds": seconds})


def limit(seconds: float) -> Limit:
    return Limit(seconds / 3600, "slot-hours", "--max-gpu-hours")


def test_slots_count_from_their_first_trial_until_they_are_gone(tmp_path: Path) -> None:
    session = Session(tmp_path, None)
    session.wait(60)  # Ray starts
    session.spending.close()
    assert session.recorded == 0
    session.book.next("a")
    session.wait(30)
    session.book.next("b")
    session.wait(20)
    session.finish("b")
    session.book.next("c")  # the slot of b goes on
    session.wait(40)
    assert session.spending.spent * 3600 == pytest.approx(30 + 2 * 60)
    session.finish("c")  # it has no further trial; how soon it goes is not known: ten seconds are counted
    session.wait(100)
    assert session.spending.spent * 3600 == pytest.approx(150 + 100 + 10, abs=0.51)
    session.finish("a")
    session.spending.close()
    assert session.recorded == pytest.approx(session.spending.spent * 3600)


def test_gpus_count_as_many_as_a_slot_holds(tmp_path: Path) -> None:
    for share, count in ((0.25, 1), (1.0, 4)):
        settings = RunSettings(train=Settings(device="cuda"), gpus_per_worker=share, workers_per_slot=count)
        session = Session(tmp_path / f"{count}", None, settings, Costs("cuda"))
        session.book.next("a")
        session.wait(50)
        session.spending.close()
        assert session.ledger.spent("cuda").hours * 3600 == pytest.approx(50 * share * count)
        assert session.recorded == 0  # no hour of a CPU's slot


def test_whenever_the_driver_is_killed_the_ledger_has_at_least_what_was_spent(tmp_path: Path) -> None:
    session = Session(tmp_path, None)
    for slot in "abc":
        session.book.next(slot)
        for _ in range(60):
            session.wait(0.5)
            spent = 3600 * session.spending.spent
            held = len(session.book.running)
            assert spent <= session.recorded <= spent + held * 15.0 + 1e-6
    # The next session goes on from there.
    assert Session(tmp_path, None).spending.spent * 3600 == pytest.approx(session.recorded)


@pytest.mark.parametrize("slots", [1, 3])
def test_all_stops_while_there_is_enough_to_stop_with(tmp_path: Path, slots: int) -> None:
    session = Session(tmp_path, limit(1000.0))
    session.spending.check()
    for slot in "abc"[:slots]:
        session.book.next(slot)
    while not session.stopped:
        session.wait(0.5)
        assert session.now < 5000
    spent = 3600 * session.spending.spent
    assert spent == pytest.approx(1000 - slots * RESERVE, abs=slots)
    assert session.recorded <= 1000, "a driver killed now would have recorded more than the limit"
    session.wait(STOPPING_SECONDS - LATE_SECONDS - 1)  # a slow stop
    assert session.stopped == 1
    assert session.recorded <= 1000
    session.spending.close()
    assert session.recorded <= 1000
    assert session.spending.message == (
        f"stopped at the limit of 0.2778 slot-hours ({(1000 - slots * (2 * LATE_SECONDS + 1)) / 3600:.3g} spent); "
        "0 of 10 trials have a result; raise --max-gpu-hours to go on"
    )
    assert session.book.settle().interrupted
    # The same limit, or a lower one, leaves nothing; a higher one does.
    for lower in (1000.0, 900.0):
        with pytest.raises(LimitError, match=r"stopped at the limit of .* 0 of 10 trials have a result"):
            Session(tmp_path, limit(lower)).spending.check()
    higher = Session(tmp_path, limit(1500.0))
    higher.spending.check()
    assert higher.book.next("a") is not None


def test_a_limit_that_leaves_too_little_to_stop_a_slot_is_refused_at_once(tmp_path: Path) -> None:
    Session(tmp_path, None).ledger.spend("earlier", "cpu", 960 / 3600, 0.0)  # killed, so that it came to no limit
    with pytest.raises(LimitError) as refused:
        Session(tmp_path, limit(960 + RESERVE - 1)).spending.check()
    assert refused.value.exit_code == 1
    Session(tmp_path, limit(960 + RESERVE + 1)).spending.check()


def test_a_trial_that_would_exceed_what_is_left_does_not_start(tmp_path: Path) -> None:
    costs = Costs("cpu")
    session = Session(tmp_path, limit(1000.0), costs=costs)
    # Nothing is known yet: the first trials start. They take 100 and 102 seconds, and so will the others.
    for slot in "ab":
        session.book.next(slot)
    session.wait(102)
    session.finish("a", 100.0)
    session.finish("b", 102.0)
    trial = STUDY.trial({"optimizer.learning_rate": 0.01}, 0)
    assert costs.seconds(trial) == 101
    # 204 seconds are spent. Three more need 303 and 105 to stop.
    for slot in "cde":
        assert session.book.next(slot) is not None
    session.wait(101)
    for slot in "cde":
        session.finish(slot, 101.0)
    # 507 are spent: of 493, three need 408, and a fourth would have 35 + 101 - 51 too little.
    for slot in "fgh":
        assert session.book.next(slot) is not None
    assert session.book.next("i") is None
    assert session.spending.reached
    session.wait(101)
    assert session.stopped == 0, "what was started is allowed to end"
    for slot in "fgh":
        session.finish(slot, 101.0)
    assert session.book.next("j") is None
    session.spending.close()
    summary = session.book.settle()
    assert (summary.done, summary.interrupted) == (8, True)
    assert "8 of 10 trials have a result" in session.spending.message
    assert session.recorded == pytest.approx(204 + 303 + 303)
    with pytest.raises(LimitError):
        Session(tmp_path, limit(1000.0)).spending.check()


def test_a_trial_that_takes_longer_than_predicted_is_stopped(tmp_path: Path) -> None:
    costs = Costs("cpu")
    for rate, taken in ((0.001, 100.0), (0.002, 100.0)):
        costs.learn(STUDY.trial({"optimizer.learning_rate": rate}, 0), taken)
    session = Session(tmp_path, limit(250.0), costs=costs)
    assert session.book.next("a") is not None
    assert session.book.next("b") is None, "two take 200 seconds, and stopping two 70"
    session.wait(200)
    assert session.stopped == 0
    session.wait(20)
    assert session.stopped == 1


def test_no_slot_starts_that_could_not_be_stopped_in_time(tmp_path: Path) -> None:
    session = Session(tmp_path, limit(3 * RESERVE - 1))
    assert [session.book.next(slot) is not None for slot in "abc"] == [True, True, False]


def test_without_a_limit_everything_starts(tmp_path: Path) -> None:
    session = Session(tmp_path, None)
    session.spending.check()
    for slot in "abcdefghij":
        assert session.book.next(slot) is not None
        session.wait(200)
    assert (session.stopped, session.spending.message) == (0, "")


def test_the_lower_of_two_limits_holds_and_costs_need_a_price() -> None:
    assert limit_of(None, None, None, "cpu") is None
    hours = limit_of(3.0, 10.0, 2.5, "cuda")
    assert hours is not None
    assert (hours.hours, hours.option) == (3.0, "--max-gpu-hours")
    assert hours.stopped(2.9876, 12, 60) == (
        "stopped at the limit of 3 GPU-hours (2.99 spent); 12 of 60 trials have a result; "
        "raise --max-gpu-hours to go on"
    )
    cost = limit_of(5.0, 10.0, 2.5, "cpu")
    assert cost is not None
    assert (cost.hours, cost.option) == (4.0, "--max-cost")
    assert cost.stopped(3.99, 12, 60) == (
        "stopped at the limit of 10.00 (9.98 spent, at 2.50 an hour); 12 of 60 trials have a result; "
        "raise --max-cost to go on"
    )
    with pytest.raises(UsageError, match="--max-cost needs --price"):
        limit_of(None, 10.0, None, "cpu")
    with pytest.raises(UsageError, match="--price is that of --max-cost"):
        limit_of(1.0, None, 2.5, "cpu")
    with pytest.raises(UsageError, match="--price must be more than 0, not 0"):
        limit_of(None, 10.0, 0.0, "cpu")
