"""The view of a study in an Optuna storage: what it holds, and that it is brought there once, whatever happened."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from ledger_contract import ARITHMETIC, small_study

from isoloss import Boundary, Choice, Curve, Linear, Log, LowRank, Study
from isoloss.config.base import replace
from isoloss.errors import UsageError
from isoloss.result import SERIES, Result
from isoloss.run.book import Book
from isoloss.run.ledger import Ledger
from isoloss.run.storage_watcher import StorageWatcher
from isoloss.search.plan import plan
from isoloss.search.storage import StorageError, StoredStudy, check_storage
from isoloss.study import Trial

RATE = "optimizer.learning_rate"

FLOOR, INITIAL = 1.0, math.log(8)


def result(trial: Trial, excess: float) -> Result:
    """Return a result that ends at this excess; one that never was finite for NaN."""
    final = FLOOR + excess if math.isfinite(excess) else INITIAL
    ended: Any = "budget" if math.isfinite(excess) else "nonfinite"
    curve = Curve((0, 4), (INITIAL, final), (0.0, 0.0), FLOOR, ended)
    return Result(trial.key, trial.canonical, curve, dict.fromkeys(SERIES, (None, 1.0)), {"seconds": 2.5})


def run(study: Study, ledger: Ledger, url: str, excess: Callable[[Trial], float], most: int = 100) -> str:
    """Run up to so many trials of a study, watched, and return what its storage lacks."""
    ledger.open(study, ARITHMETIC)
    watcher = StorageWatcher(study, ledger, url, every_s=0.01)
    book = Book(study, plan(study), ledger, [watcher])
    for _ in range(most):
        order = book.next("slot")
        if order is None:
            break
        ledger.finish(result(order.trial, excess(order.trial)))
        book.ended("slot", "finished", "")
    return watcher.close(30.0)


def stored(study: Study, url: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=study.name, storage=url).get_trials()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a storage without studies, since making its tables takes half a second."""
    path = tmp_path_factory.mktemp("optuna") / "optuna.db"
    optuna.storages.get_storage(f"sqlite:///{path}")
    return path


@pytest.fixture
def url(empty: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(empty, tmp_path)}"


def test_a_trial_is_told_whole(ledger: Ledger, url: str) -> None:
    study = replace(small_study(), "axes", {RATE: Choice(1e-3, 1e-2), "head": Choice(Linear(), LowRank(rank=4))})
    assert isinstance(study, Study)
    excess = {(rate, head): 0.01 * (1 + i) for i, (rate, head) in enumerate(
        (rate, head) for head in ("linear", "low_rank") for rate in (1e-3, 1e-2))}  # fmt: skip
    excess[1e-2, "linear"] = math.nan
    assert run(study, ledger, url, lambda trial: excess[trial.optimizer.learning_rate, trial.head.kind]) == ""
    trials = stored(study, url)
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": 4}
    assert [trial.user_attrs["isoloss:key"] for trial in trials] == [claim.key for claim in ledger.claims()]
    for trial, claim in zip(trials, ledger.claims(), strict=True):
        kind = "low_rank" if "low_rank" in trial.params["head"] else "linear"
        expected = excess[trial.params[RATE], kind]
        assert trial.value == pytest.approx(math.log10(INITIAL - FLOOR if math.isnan(expected) else expected))
        assert trial.user_attrs["outcome"] == ("nonfinite" if math.isnan(expected) else "converged")
        assert (trial.user_attrs["number"], trial.user_attrs["replicate"]) == (claim.number, 0)
        began = datetime.fromtimestamp(claim.created_ms / 1000)
        assert (trial.datetime_start, trial.duration.total_seconds()) == (began, 2.5)  # type: ignore[union-attr]


def test_what_is_there_is_not_added_again(ledger: Ledger, url: str) -> None:
    run(small_study(), ledger, url, lambda trial: 0.5, most=2)
    first = stored(small_study(), url)
    assert run(small_study(), ledger, url, lambda trial: 0.5) == ""
    again = stored(small_study(), url)
    assert again[:2] == first
    assert len({trial.user_attrs["isoloss:key"] for trial in again}) == len(again) == 4
    assert run(small_study(), ledger, url, lambda trial: 0.5) == ""
    assert stored(small_study(), url) == again


def test_a_lost_storage_is_filled_from_the_ledger(ledger: Ledger, url: str, empty: Path, tmp_path: Path) -> None:
    run(small_study(), ledger, url, lambda trial: 0.5)
    before = stored(small_study(), url)
    other = f"sqlite:///{shutil.copy(empty, tmp_path / 'other.db')}"
    assert run(small_study(), ledger, other, lambda trial: 0.5) == ""

    def told(trial: optuna.trial.FrozenTrial) -> Any:
        return trial.params, trial.value, trial.user_attrs, trial.datetime_start, trial.datetime_complete

    assert list(map(told, stored(small_study(), other))) == list(map(told, before))


def test_a_boundary_search_is_shown_too(ledger: Ledger, url: str) -> None:
    changes: dict[str, Any] = {"axes": {RATE: Log(1e-4, 1e-1)}, "search": Boundary(trials=6), "replicates": 2}
    fields = {name: getattr(small_study(), name) for name in Study.model_fields}
    study = Study(**{**fields, **changes})
    excess = {True: 0.02, False: 0.6}
    assert run(study, ledger, url, lambda trial: excess[trial.optimizer.learning_rate < 1e-2]) == ""
    trials = stored(study, url)
    assert len(trials) == 6
    for trial in trials:
        assert trial.value == pytest.approx(math.log10(excess[trial.params[RATE] < 1e-2]))
        assert trial.user_attrs["outcome"] == ("converged" if trial.params[RATE] < 1e-2 else "undertrained")


def test_a_study_with_another_definition_is_stored_anew(ledger: Ledger, url: str) -> None:
    run(small_study(), ledger, url, lambda trial: 0.2)
    assert {trial.user_attrs["outcome"] for trial in stored(small_study(), url)} != {"converged"}
    lenient = replace(small_study(), "verdict", small_study().verdict.model_copy(update={"converged_below": 0.3}))
    assert isinstance(lenient, Study)
    assert run(lenient, ledger, url, lambda trial: 0.2) == ""
    trials = stored(lenient, url)
    assert [trial.user_attrs["outcome"] for trial in trials] == ["converged"] * 4


def test_somebody_elses_study_is_left_alone(ledger: Ledger, url: str) -> None:
    theirs = optuna.create_study(study_name="small", storage=url)
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(StorageError, match="'small' there was not made by isoloss"):
        StoredStudy(small_study(), url)
    assert "not made by isoloss" in run(small_study(), ledger, url, lambda trial: 0.5)
    assert len(theirs.get_trials()) == 1
    assert len(ledger.finished()) == 4


def test_a_storage_that_is_away_costs_nothing_but_the_view(ledger: Ledger, empty: Path, tmp_path: Path) -> None:
    away = tmp_path / "not" / "there"
    url = f"sqlite:///{away}/optuna.db"
    lacks = run(small_study(), ledger, url, lambda trial: 0.5, most=3)
    assert "unable to open database file" in lacks
    assert len(ledger.finished()) == 3
    away.mkdir(parents=True)
    shutil.copy(empty, away)
    assert run(small_study(), ledger, url, lambda trial: 0.5) == ""
    assert len(stored(small_study(), url)) == 4


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("optuna.db", "could not parse sqlalchemy url"),
        ("sqlit:///optuna.db", "sqlit"),
        ("mysql+mysqldb://me:secret@host/db", "mysql\\+mysqldb needs another package"),
        ("me:secret@host", "could not parse sqlalchemy url"),
    ],
)
def test_what_is_no_database_is_refused_without_showing_it(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"(?i)--optuna-storage: .*{said}") as refused:
        check_storage(url)
    assert "secret" not in str(refused.value)
    check_storage("sqlite:///optuna.db")
