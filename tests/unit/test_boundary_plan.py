"""A boundary search as a study's plan: what trials tell it, when it stops, whose turn it is, what survives changes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ledger_contract import ARITHMETIC, small_result, small_study
from plan_contract import answer, go_on, keys, searching

from isoloss import Boundary, Choice, Curve, Log, Study
from isoloss.config.base import replace
from isoloss.result import Result
from isoloss.run.book import Book
from isoloss.run.ledger import Ledger
from isoloss.search.boundary_plan import BoundaryPlan, excess, reason, seen, settled, space_of
from isoloss.search.plan import Proposal, plan

AXES = {"optimizer.learning_rate": Log(1e-4, 1.0), "task.vocab_size": Choice(8, 16, 32, 64)}


def boundary(study: Study) -> BoundaryPlan:
    made = plan(study)
    assert isinstance(made, BoundaryPlan)
    return made


def all_end_at(loss: float, one: BoundaryPlan, most: int = 1_000) -> list[Proposal]:
    done = []
    while len(done) < most and (proposal := one.next()) is not None:
        one.claimed(*proposal)
        one.finished(proposal[1], small_result(proposal[1].key, loss))
        done.append(proposal)
    return done


@pytest.mark.parametrize(
    ("losses", "ended", "expected"),
    [
        ((2.0, 0.5), "budget", 1.0),  # ten times the threshold of 0.05
        ((2.0, 0.005), "budget", -1.0),
        ((2.0, 1e-12), "budget", math.log10(1e-6 / 0.05)),  # below the noise around the floor, all are alike
        ((2.0, 0.5), "nonfinite", math.inf),
        ((2.0, 0.5), "above_initial", math.inf),
        ((2.0, 0.1, 1.9), "budget", math.inf),  # gave back its progress: diverged
    ],
)
def test_what_a_curve_says(losses: tuple[float, ...], ended: str, expected: float) -> None:
    curve = Curve(tuple(range(len(losses))), losses, (0.0,) * len(losses), 0.0, ended)  # type: ignore[arg-type]
    assert excess(searching(Boundary(trials=9)), curve) == pytest.approx(expected)
    sides = searching(Boundary(trials=9, observation="outcome"))
    assert excess(sides, curve) == (math.inf if expected > 0 else -math.inf)


@pytest.mark.parametrize("loss", [0.001, 1.9])
def test_a_threshold_that_is_never_crossed_ends_the_search_early(loss: float) -> None:
    one = boundary(searching(Boundary(trials=400), AXES))
    done = all_end_at(loss, one)
    assert one.reason() == "known"
    assert 24 <= len(done) < 60
    assert one.total == len(done)


def test_a_study_without_axes_is_one_cell_of_several_seeds() -> None:
    fields = {name: getattr(small_study(), name) for name in Study.model_fields}
    study = Study(**{**fields, "axes": {}, "search": Boundary(trials=50), "replicates": 3})
    done = go_on(plan(study), 100)
    assert sorted(trial.replicate for _, trial in done) == [0, 1, 2]


def test_seeds_take_turns_independently_of_where_the_trial_lies() -> None:
    study = searching(Boundary(trials=64, start=64, tolerance=1e-9), AXES, replicates=2)
    done = go_on(plan(study), 64)
    counts = Counter(trial.replicate for _, trial in done)
    assert min(counts.values()) >= 20
    left = Counter(trial.replicate for cell, trial in done if cell["optimizer.learning_rate"] < 1e-2)
    assert min(left.values()) >= 8  # with turns in order, all of one seed would lie in one half


def test_why_it_stopped_is_read_off_the_finished_trials_alone() -> None:
    study = searching(Boundary(trials=200, tolerance=0.06, width=1.5), AXES)
    assert isinstance(study.search, Boundary)
    one = boundary(study)
    done = go_on(one, 1_000)
    assert len(done) < 200
    assert one.reason() == "known"
    finished = [(cell, answer((cell, trial)).curve) for cell, trial in done]
    assert reason(study, study.search, space_of(study), finished) == "known"
    assert reason(study, study.search, space_of(study), finished[:-4]) is None


def test_a_trial_that_is_awaited_hides_what_came_after_it() -> None:
    cell, curve = {"x": 1}, Curve((0,), (1.0,), (0.0,), 0.0)
    claims = [(cell, curve, False), (cell, None, True), (cell, curve, False), (cell, None, False), (cell, curve, False)]
    assert settled(claims) == [(cell, curve)] * 2


@pytest.mark.slow
def test_a_search_on_many_slots_stays_stopped_whoever_finishes_first(tmp_path: Path) -> None:
    study = searching(Boundary(trials=200, tolerance=0.12, width=5.0), AXES)
    ledger = Ledger(tmp_path)
    ledger.open(study, ARITHMETIC)
    book = Book(study, plan(study), ledger)
    random = np.random.default_rng(0)
    running = [order for slot in range(6) if (order := book.next(f"{slot}")) is not None]
    slots = [str(slot) for slot in range(6)]
    while running:
        which = int(random.integers(len(running)))
        order, slot = running.pop(which), slots.pop(which)
        ledger.finish(answer((order.cell, order.trial)))
        book.ended(slot, None, "")
        following = book.next(slot)
        if following is not None:
            running.append(following)
            slots.append(slot)
    stopped = boundary(study)
    again = Book(study, stopped, ledger)
    assert again.done == again.plan.total == len(ledger.claims()) < 200
    assert stopped.reason() == "known"


def test_the_next_session_of_a_stopped_search_asks_nothing(tmp_path: Path) -> None:
    study = searching(Boundary(trials=200, tolerance=0.2, width=5.0), AXES)
    ledger = Ledger(tmp_path)
    ledger.open(study, ARITHMETIC)
    book = Book(study, plan(study), ledger)
    while (order := book.next("slot")) is not None:
        ledger.finish(answer((order.cell, order.trial)))
        book.ended("slot", None, "")
    again = Book(study, plan(study), ledger)
    assert again.done == again.plan.total < 200
    assert again.next("slot") is None


def test_a_wider_study_keeps_what_the_narrower_one_knew(tmp_path: Path) -> None:
    narrow = searching(Boundary(trials=16), AXES)
    ledger = Ledger(tmp_path)
    ledger.open(narrow, ARITHMETIC)
    book = Book(narrow, plan(narrow), ledger)
    while (order := book.next("slot")) is not None:
        ledger.finish(answer((order.cell, order.trial)))
        book.ended("slot", None, "")
    axes = {"optimizer.learning_rate": Log(1e-5, 10.0), "task.vocab_size": Choice(8, 16, 32, 64, 128)}
    wide = replace(replace(narrow, "axes", axes), "search", Boundary(trials=40))
    assert isinstance(wide, Study)
    again = boundary(wide)
    book = Book(wide, again, ledger)
    assert book.done == 16
    known = again._optuna.sampler.map(again._optuna)  # type: ignore[attr-defined]
    assert len(known.seen) == 16
    fresh = boundary(wide)
    first, other = again.next(), fresh.next()
    assert first is not None
    assert other is not None
    assert first[1].key != other[1].key


def test_a_lost_trial_repels_nothing_and_counts_for_nothing() -> None:
    study = searching(Boundary(trials=40), AXES)
    one, other = boundary(study), boundary(study)
    for plan_ in (one, other):
        go_on(plan_, 20)
    lost = one.next()
    assert lost is not None
    one.claimed(*lost)
    one.gave_up(lost[1])
    after = one.next()
    assert after is not None
    assert len(seen(study, space_of(study), [])) == 0
    known = one._optuna.sampler.map(one._optuna)  # type: ignore[attr-defined]
    assert len(known.seen) == 20


@pytest.mark.slow
def test_thirty_percent_lost_trials_leave_a_map(tmp_path: Path) -> None:
    one = boundary(searching(Boundary(trials=60), AXES))
    finished = []
    for turn in range(60):
        proposal = one.next()
        if proposal is None:
            break
        one.claimed(*proposal)
        if turn % 10 in (1, 4, 7):
            one.gave_up(proposal[1])
        else:
            result: Result = answer(proposal)
            one.finished(proposal[1], result)
            finished.append(proposal)
    assert len(set(keys(finished))) == len(finished) >= 28
    known = one._optuna.sampler.map(one._optuna)  # type: ignore[attr-defined]
    # The answer's band: 0.05 (3e-3 / rate)^0.9 <= 0.05 from 3e-3 on, and finite up to 4e-2.
    rates = [10 ** (-4 + 4 * i / 200) for i in range(201)]
    points = space_of(one.study).encode([{"optimizer.learning_rate": rate, "task.vocab_size": 16} for rate in rates])
    right = [(inside > 0.5) == (3e-3 <= rate <= 4e-2) for rate, inside in zip(rates, known.inside(points), strict=True)]
    assert sum(right) / len(right) > 0.93


def test_a_fit_that_fails_is_told_on_the_claim_and_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from isoloss.search.boundary import sampler
    from isoloss.track.fields import unfinished_child

    study = searching(Boundary(trials=16), AXES)
    ledger = Ledger(tmp_path)
    ledger.open(study, ARITHMETIC)
    book = Book(study, plan(study), ledger)
    for _ in range(13):
        order = book.next("slot")
        assert order is not None
        assert order.claim.note == ""
        ledger.finish(answer((order.cell, order.trial)))
        book.ended("slot", None, "")

    def fails(*arguments: object) -> None:
        raise np.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(sampler, "BoundaryMap", fails)
    order = book.next("slot")
    assert order is not None
    assert "not positive definite" in caplog.text
    claim = ledger.claims()[-1]
    assert claim.note == "the map could not be fitted; a Sobol point instead"
    child = unfinished_child(study, claim, order.cell, order.trial, "parent", "RUNNING", "running")
    assert child.tags["isoloss.note"] == claim.note
