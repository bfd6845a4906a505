"""What a boundary search found, told from a ledger whose truth is known: edges, a bound, a closed band, an island."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isoloss import AdamW, Boundary, Choice, Curve, Decoder, Grid, Linear, Log, LowRank, SpamLang, Span, Steps, Study
from isoloss.analysis.boundary import (
    LEVELS,
    boundary_table,
    check_counts,
    course,
    findings,
    places,
)
from isoloss.result import SERIES, Result
from isoloss.run.ledger import Ledger
from isoloss.search import boundary_plan
from isoloss.search.boundary.map import BoundaryMap

RATE, VOCABULARY = "optimizer.learning_rate", "task.vocab_size"

EDGES = {16: (1e-3, math.inf), 64: (2e-3, 1e-1), 256: (4e-3, 3e-2), 1024: None}
"""The band of each V: of 16 it runs into the end of the range, of 1024 it is closed."""

RATES = [float(f"{10 ** (-4 + 4 * (i + 0.5) / 16):.4g}") for i in range(16)]


def study(**changes: Any) -> Study:
    """Return V x learning rate with two replicates under a boundary search, changed as asked."""
    fields: dict[str, Any] = {
        "name": "edges",
        "question": "Where does the band end?",
        "task": SpamLang(vocab_size=64, sequence_length=4),
        "model": Decoder(width=32, depth=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(100, batch_size=8),
        "axes": {RATE: Log(1e-4, 1.0), VOCABULARY: Choice(*EDGES)},
        "replicates": 2,
        "search": Boundary(trials=64),
    }
    return Study(**{**fields, **changes})


def truth(of: Study, cell: dict[str, Any]) -> float:
    """Return the final excess: the threshold at the lower edge, half of it a tenth of a decade above, nan beyond."""
    band = EDGES[cell[VOCABULARY]]
    threshold = of.verdict.converged_below
    if band is None:
        return 20 * threshold if cell[RATE] < 1e-2 else math.nan
    if cell[RATE] > band[1]:
        return math.nan
    return max(threshold / 30, threshold * (band[0] / cell[RATE]) ** 3)


def finish(made: Ledger, of: Study, number: int, cell: dict[str, Any], replicate: int, excess: float) -> None:
    """Claim one trial and record its result."""
    cell = of.cell(cell)
    trial = of.trial(cell, replicate)
    made.claim(number, trial.key, cell, replicate)
    initial = math.log(trial.task.vocab_size)
    final = min(trial.task.floor + excess, 0.95 * initial) if math.isfinite(excess) else initial
    losses = (initial, final, final)
    curve = Curve(
        (0, 50, 100), losses, (0.0,) * 3, trial.task.floor, "budget" if math.isfinite(excess) else "nonfinite"
    )
    series: dict[str, Any] = dict.fromkeys(SERIES, (None,) * 3)
    made.finish(Result(trial.key, trial.canonical, curve, series, {"device": "cpu", "seconds": 1.0}))


def ledger(folder: Path, of: Study, count: int = 64, truth: Callable[[Study, dict[str, Any]], float] = truth) -> Ledger:
    """Return a ledger of finished trials: every learning rate of ``RATES`` at each V, in a shuffled order."""
    made = Ledger(folder)
    made.open(of, {"device": "cpu"})
    cells = [{RATE: rate, VOCABULARY: vocabulary} for vocabulary in EDGES for rate in RATES]
    for number, i in enumerate(np.random.default_rng(0).permutation(len(cells))[:count]):
        finish(made, of, number, cells[i], int(i) % 2, truth(of, of.cell(cells[i])))
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return ledger(tmp_path_factory.mktemp("ledger"), study())


def boundary_map(of: Study, made: Ledger) -> BoundaryMap | None:
    found = findings(of, made)
    return found and found.known


def test_the_intervals_hold_the_true_edges(made: Ledger) -> None:
    known = boundary_map(study(), made)
    assert known is not None
    table = boundary_table(study(), known).set_index([VOCABULARY, "level"])
    assert list(table.index) == [(vocabulary, level) for vocabulary in EDGES for level in LEVELS]
    for vocabulary in (64, 256):
        row = table.loc[(vocabulary, 0.5)]
        low, high = EDGES[vocabulary]  # type: ignore[misc]
        assert row["lowest_from"] <= low <= row["lowest_to"]
        assert row["highest_from"] <= high <= row["highest_to"]
        assert row["lowest_from"] <= row["lowest"] <= row["lowest_to"]
        assert not row["lowest_is_bound"]
        assert not row["highest_is_bound"]
        assert row["closed"] < 0.05
        # Nine seeds in ten converge on a narrower band than five.
        assert row["lowest"] <= table.loc[(vocabulary, 0.9), "lowest"]
        assert table.loc[(vocabulary, 0.9), "highest"] <= row["highest"]


def test_a_band_that_runs_into_the_range_is_a_bound(made: Ledger) -> None:
    known = boundary_map(study(), made)
    assert known is not None
    row = boundary_table(study(), known).set_index([VOCABULARY, "level"]).loc[(16, 0.5)]
    assert row["highest_is_bound"]
    assert row["highest_bound"] > 0.5
    assert row["highest"] == pytest.approx(1.0)
    assert row["lowest_from"] <= 1e-3 <= row["lowest_to"]


def test_a_closed_band_has_no_ends(made: Ledger) -> None:
    known = boundary_map(study(), made)
    assert known is not None
    row = boundary_table(study(), known).set_index([VOCABULARY, "level"]).loc[(1024, 0.5)]
    assert row["closed"] > 0.5
    assert np.isnan(row["highest"])
    assert np.isnan(row["lowest_from"])
    assert not row["highest_is_bound"]


def test_two_stretches_are_probable_islands(tmp_path: Path) -> None:
    def split(of: Study, cell: dict[str, Any]) -> float:
        inside = 1e-3 < cell[RATE] < 5e-3 or 3e-2 < cell[RATE] < 2e-1
        return of.verdict.converged_below / 20 if inside else math.nan

    of = study(search=Boundary(trials=64, observation="outcome"))
    known = boundary_map(of, ledger(tmp_path, of, truth=split))
    assert known is not None
    assert boundary_table(of, known).set_index([VOCABULARY, "level"]).loc[(64, 0.5), "islands"] > 0.5


def test_checks_are_those_of_the_first_claims(made: Ledger) -> None:
    of = study()
    found = course(of, made).checks
    assert [check.trials for check in found] == [8, 16, 24, 32, 40, 48, 56, 64]
    space = boundary_plan.space_of(of)
    claims = made.claims()
    first = [(of.cell(claim.cell), made.result(claim.key).curve) for claim in claims[:24]]
    alone = BoundaryMap(space, boundary_plan.seen(of, space, first))
    assert found[2].error_volume == alone.error_volume
    assert found[-1].error_volume < found[0].error_volume


@pytest.mark.parametrize(
    ("finished", "counts"),
    [(0, []), (3, [3]), (8, [4, 8]), (89, [12, 24, 36, 48, 60, 72, 84, 89]), (120, list(range(12, 121, 12)))],
)
def test_checks_are_few_and_even(finished: int, counts: list[int]) -> None:
    assert check_counts(finished) == counts


def test_the_course_says_why_the_search_stopped(made: Ledger, tmp_path: Path) -> None:
    loose = course(study(search=Boundary(trials=64, tolerance=0.3, width=3.0)), made)
    assert (loose.reason, loose.total, loose.finished) == ("known", 64, 64)
    never = Boundary(trials=64, tolerance=1e-9)
    few = study(search=never)
    assert course(few, ledger(tmp_path, few, count=16)).reason is None
    assert course(few, Ledger(tmp_path)).total == 64
    spent = course(study(search=Boundary(trials=60, tolerance=1e-9, width=1e-9)), made)
    assert spent.reason in ("spent", "limited by noise")
    assert spent.total == 64


def test_nothing_is_found_without_trials_or_without_a_boundary_search(tmp_path: Path) -> None:
    of = study()
    empty = ledger(tmp_path / "empty", of, count=0)
    assert findings(of, empty) is None
    assert course(of, empty).checks == ()
    grid = study(axes={RATE: Log(1e-4, 1.0, points=4), VOCABULARY: Choice(16, 64)}, search=Grid())
    assert findings(grid, ledger(tmp_path / "grid", of, count=4)) is None
    with pytest.raises(TypeError, match="no boundary search"):
        course(grid, empty)


def test_ranges_are_looked_at_at_even_places_and_their_middle(made: Ledger) -> None:
    of = study(axes={RATE: Log(1e-4, 1.0), VOCABULARY: Log(16, 1024), "optimizer.weight_decay": Span(0.0, 0.4)})
    space = boundary_plan.space_of(of)
    known = BoundaryMap(space, boundary_plan.seen(of, space, []) + _one(of))
    assert places(of, known, VOCABULARY) == [16, 27, 45, 76, 128, 215, 362, 609, 1024]
    assert places(of, known, "optimizer.weight_decay") == pytest.approx([0.05 * i for i in range(9)])
    table = boundary_table(of, known)
    assert len(table) == 81 * len(LEVELS)


def test_parts_stand_in_the_table_by_their_label(tmp_path: Path) -> None:
    of = study(axes={RATE: Log(1e-4, 1.0), "head": Choice(Linear(), LowRank(rank=8))})
    space = boundary_plan.space_of(of)
    table = boundary_table(of, BoundaryMap(space, _one(of)))
    assert table["head"].tolist() == ["linear()", "linear()", "low_rank(8)", "low_rank(8)"]


def test_no_learning_rate_no_band(tmp_path: Path) -> None:
    of = study(axes={VOCABULARY: Choice(*EDGES)})
    made = Ledger(tmp_path)
    made.open(of, {"device": "cpu"})
    for number, vocabulary in enumerate(EDGES):
        finish(made, of, number, {VOCABULARY: vocabulary}, 0, 0.001 if vocabulary < 100 else math.nan)
    found = findings(of, made)
    assert found is not None
    assert found.table is None
    assert 0 < found.known.error_volume < 0.5
    with pytest.raises(ValueError, match="no learning-rate axis"):
        boundary_table(of, found.known)


def _one(of: Study) -> Any:
    """Return what a single converged trial in the middle of the space says."""
    space = boundary_plan.space_of(of)
    return boundary_plan.Seen(space.cover(np.full((1, len(space)), 0.5)), np.array([-1.0]))
