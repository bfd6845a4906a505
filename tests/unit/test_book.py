"""The driver's book: what is handed out, in which order, and what is never handed out twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from ledger_contract import ARITHMETIC, small_result, small_study

from isoloss import Choice, Log, Optuna, Outcome, Random, Study
from isoloss.config.base import replace
from isoloss.result import Result
from isoloss.run.book import Book
from isoloss.run.ledger import Claim, Ledger
from isoloss.run.members import members
from isoloss.search.plan import listed_trials, plan


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def running(self, claim: Claim) -> None:
        self.events.append(("running", claim.key))

    def progress(self, key: str, rows: list[dict[str, Any]]) -> None:
        self.events.append(("progress", key))

    def finished(self, key: str) -> None:
        self.events.append(("finished", key))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def opened(study: Study, ledger: Ledger, *watchers: Heard) -> Book:
    ledger.open(study, ARITHMETIC)
    return Book(study, plan(study), ledger, watchers)


def finish(ledger: Ledger, book: Book, slot: str, loss: float = 0.5) -> None:
    ledger.finish(small_result(book.running[slot].trial.key, loss))
    book.ended(slot, "finished", "")


def hand_out(book: Book, slots: int) -> list[str]:
    keys = []
    for slot in range(slots):
        order = book.next(f"s{slot}")
        assert order is not None
        keys.append(order.trial.key)
    return keys


def test_every_trial_is_handed_out_once_and_claimed_first(ledger: Ledger) -> None:
    heard = Heard()
    book = opened(small_study(), ledger, heard)
    keys = hand_out(book, 4)
    assert keys == [trial.key for _, trial in small_study().trials()]
    assert [claim.key for claim in ledger.claims()] == keys
    assert book.next("s4") is None
    book.progress("s1", [{"step": 0}])
    finish(ledger, book, "s1")
    assert heard.events[-2:] == [("progress", keys[1]), ("finished", keys[1])]
    assert book.done == 1


def test_a_new_session_finishes_what_was_claimed_before_it_claims_more(ledger: Ledger) -> None:
    first = opened(small_study(), ledger)
    keys = hand_out(first, 3)
    finish(ledger, first, "s1", loss=0.01)
    second = opened(small_study(), ledger)
    assert second.done == 1
    assert second.outcomes == {Outcome.CONVERGED: 1}
    assert hand_out(second, 3) == [keys[0], keys[2], list(small_study().trials())[3][1].key]
    assert len(ledger.claims()) == 4


def test_a_lost_trial_is_no_outcome_and_is_tried_again(ledger: Ledger) -> None:
    first = opened(small_study(), ledger)
    (key,) = hand_out(first, 1)
    first.ended("s0", "lost", "its machine went away")
    assert first.gave_up == {key: "lost: its machine went away"}
    assert first.done == 0
    assert ledger.unfinished()[key]["state"] == "lost"
    second = opened(small_study(), ledger)
    assert hand_out(second, 1) == [key]
    finish(ledger, second, "s0")
    assert ledger.unfinished() == {}


def test_a_result_counts_even_when_its_slot_died_before_saying_so(ledger: Ledger) -> None:
    book = opened(small_study(), ledger)
    (key,) = hand_out(book, 1)
    ledger.finish(small_result(key))
    book.ended("s0", "lost", "its slot failed")
    assert book.done == 1
    assert book.gave_up == {}


def test_an_interrupted_session_counts_what_was_finished_while_it_ended(ledger: Ledger) -> None:
    heard = Heard()
    book = opened(small_study(), ledger, heard)
    keys = hand_out(book, 2)
    ledger.finish(small_result(keys[1]))
    book.settle()
    assert book.done == 1
    assert ("finished", keys[1]) in heard.events
    assert ("finished", keys[0]) not in heard.events
    assert ledger.unfinished() == {}


def test_an_interrupt_while_the_last_trials_run_is_one(ledger: Ledger) -> None:
    book = opened(small_study(), ledger)
    hand_out(book, 4)
    assert book.next("s4") is None  # the plan has nothing more
    ledger.finish(small_result(book.running["s0"].trial.key))
    assert book.settle().interrupted
    book = opened(small_study(), ledger)
    for slot in ("a", "b", "c"):
        book.next(slot)
        finish(ledger, book, slot)
    assert book.next("d") is None
    assert not book.settle().interrupted


def test_a_changed_study_keeps_the_trials_it_shares(ledger: Ledger) -> None:
    book = opened(small_study(), ledger)
    hand_out(book, 4)
    for slot in range(4):
        finish(ledger, book, f"s{slot}")
    wider = replace(small_study(), "axes", {**small_study().axes, "task.vocab_size": Choice(8, 32)})
    assert isinstance(wider, Study)
    book = opened(wider, ledger)
    assert book.done == 2
    assert [order.trial.task.vocab_size for order in [book.next("a"), book.next("b")]] == [32, 32]  # type: ignore[union-attr]
    assert book.next("c") is None


def continuous(search: Random | Optuna, replicates: int = 1) -> Study:
    fields = {name: getattr(small_study(), name) for name in Study.model_fields}
    axes = {"optimizer.learning_rate": Log(1e-4, 1e-1), "task.vocab_size": Choice(8, 16, 32)}
    return Study(**{**fields, "axes": axes, "search": search, "replicates": replicates})


def test_a_narrowed_search_leaves_out_what_it_would_not_ask(ledger: Ledger) -> None:
    wide = continuous(Random(cells=16), replicates=2)
    ledger.open(wide, ARITHMETIC)
    for number, (cell, trial) in enumerate(listed_trials(wide)):
        ledger.claim(number, trial.key, cell, trial.replicate)
    fields = {name: getattr(wide, name) for name in Study.model_fields}
    axes = {"optimizer.learning_rate": Log(1e-3, 1e-2), "task.vocab_size": Choice(8, 16)}
    narrow = Study(**{**fields, "axes": axes, "replicates": 1})
    kept = [cell for _, cell, _ in members(narrow, ledger.claims())]
    assert len(list(members(wide, ledger.claims()))) == 32
    inside = [c for c, t in listed_trials(wide) if t.replicate == 0 and c["task.vocab_size"] != 32]
    assert kept == [c for c in inside if 1e-3 <= c["optimizer.learning_rate"] <= 1e-2] != []


def test_random_cells_fill_the_ranges_and_more_cells_keep_the_first() -> None:
    few = listed_trials(continuous(Random(cells=16)))
    assert [trial.key for _, trial in listed_trials(continuous(Random(cells=64)))[:16]] == [t.key for _, t in few]
    rates = sorted(math.log10(cell["optimizer.learning_rate"]) for cell, _ in few)
    # 16 points of a scrambled Sobol sequence: exactly one in each sixteenth of every axis.
    assert [math.floor((rate + 4) / 3 * 16) for rate in rates] == list(range(16))
    assert {cell["task.vocab_size"] for cell, _ in few} == {8, 16, 32}


def test_random_draws_without_sobol_are_cells_too_and_a_small_space_ends() -> None:
    assert len(listed_trials(continuous(Random(cells=9, sobol=False), replicates=2))) == 18
    discrete = small_study().axes
    fields = {name: getattr(small_study(), name) for name in Study.model_fields}
    study = Study(**{**fields, "axes": discrete, "search": Random(cells=50)})
    assert len(listed_trials(study)) == 4


@pytest.mark.parametrize("sampler", ["TPESampler", "RandomSampler", "QMCSampler"])
def test_an_optuna_sampler_asks_every_replicate_and_is_continued(ledger: Ledger, sampler: str) -> None:
    study = continuous(Optuna(sampler=sampler, cells=5), replicates=2)
    book = opened(study, ledger)
    assert book.plan.total == 10
    hand_out(book, 3)
    finish(ledger, book, "s0")
    book = opened(study, ledger)
    keys = set()
    for number in range(9):
        order = book.next(f"t{number}")
        assert order is not None, number
        keys.add(order.trial.key)
        finish(ledger, book, f"t{number}", loss=0.1 * number)
    assert book.next("end") is None
    assert len(keys) == 9
    assert book.done == 10
    assert len({claim.replicate for claim in ledger.claims()}) == 2


def test_optuna_is_told_a_finite_number_for_every_outcome(ledger: Ledger) -> None:
    study = continuous(Optuna(sampler="TPESampler", cells=3, options={"n_startup_trials": 1}))
    book = opened(study, ledger)
    for slot, ended in (("a", "nonfinite"), ("b", "above_initial"), ("c", "budget")):
        order = book.next(slot)
        assert order is not None
        result = small_result(order.trial.key, loss=1e-9)
        curve = type(result.curve)(
            result.curve.step, result.curve.loss, result.curve.standard_error, 0.0, ended  # type: ignore[arg-type]
        )  # fmt: skip
        ledger.finish(Result(result.key, result.trial, curve, result.series, result.machine))
        book.ended(slot, "finished", "")
    values = [trial.value for trial in book.plan._optuna.trials]  # type: ignore[attr-defined]
    # Ended early: the initial excess ln 8. Below 1e-6 nats: 1e-6.
    assert values == pytest.approx([math.log10(math.log(8)), math.log10(math.log(8)), -6.0])


def test_an_unknown_sampler_is_refused_in_words() -> None:
    from isoloss.search.plan import SearchError, plan

    with pytest.raises(SearchError, match=r"Optuna has no 'Guess'; it has .*TPESampler"):
        plan(continuous(Optuna(sampler="Guess", cells=5)))
    with pytest.raises(SearchError, match=r"TPESampler refuses \{'n_start': 3\}"):
        plan(continuous(Optuna(sampler="TPESampler", cells=5, options={"n_start": 3})))
