"""The surface counts what its cells' replicates did, and lays axes out as declared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from test_report_example import finish, ledger, study

from isoloss import Choice, Coverage, Linear, Log, LowRank, Random, Span, Steps, Study
from isoloss.analysis.surface import Plane, axis_values, majority, records, split, surface_table, waiting_table
from isoloss.analysis.table import trials_table
from isoloss.run.ledger import Ledger


def test_majority_prefers_the_frequent_then_the_worse() -> None:
    assert majority(Counter(converged=2, diverged=1)) == "converged"
    assert majority(Counter(converged=1, undertrained=1)) == "undertrained"
    assert majority(Counter(nonfinite=1, diverged=1, plateaued=1)) == "nonfinite"
    assert majority(Counter()) is None


def test_cells_count_their_replicates(tmp_path: Path) -> None:
    of = study()
    cells = surface_table(of, trials_table(of, ledger(tmp_path, of)))
    assert len(cells) == 3 * 7 * 2
    assert (cells["finished"] == 2).all()
    assert not cells[["pending", "given_up", "missing"]].any(axis=None)
    steps = cells["budget"] == "steps(300, batch_size=32)"
    edge = records(cells[steps & (cells["task.vocab_size"] == 1024) & (cells["optimizer.learning_rate"] > 0.09)])
    assert [(cell["diverged"], cell["nonfinite"], cell["outcome"]) for cell in edge] == [(1, 1, "nonfinite")]
    # Both replicates were stopped, so each counts with its initial loss, ln(1024).
    assert edge[0]["median_excess"] == pytest.approx(6.931471805599453)
    middle = records(cells[steps & (cells["task.vocab_size"] == 64) & (cells["optimizer.learning_rate"] == 0.001)])
    # 0.33 nats and 3 % more in the second replicate.
    assert middle[0]["median_excess"] == pytest.approx((0.33 + 0.33 * 1.03) / 2)
    assert middle[0]["lowest_excess"] == pytest.approx(0.33)
    assert len(middle[0]["keys"].split()) == 2


def test_an_unfinished_grid_shows_what_waits_and_what_nobody_tried(tmp_path: Path) -> None:
    of = study()
    made = Ledger(tmp_path)
    made.open(of, {"device": "cpu"})
    trials = list(of.trials())
    for number, (cell, trial) in enumerate(trials[:5]):
        made.claim(number, trial.key, cell, trial.replicate)
    finish(made, trials[0][1])
    made.give_up(trials[1][1].key, "lost", "the machine went away")
    waiting = waiting_table(of, made)
    assert waiting["state"].tolist() == ["given_up", "pending", "pending", "pending"]
    cells = surface_table(of, trials_table(of, made), waiting)
    assert len(cells) == 42
    assert cells[["finished", "pending", "given_up", "missing"]].sum().tolist() == [1, 3, 1, 84 - 5]


def test_no_trial_at_all(tmp_path: Path) -> None:
    of = study()
    made = Ledger(tmp_path)
    made.open(of, {"device": "cpu"})
    cells = surface_table(of, trials_table(of, made), waiting_table(of, made))
    assert (cells["missing"] == 2).all()
    scattered = study(search=Random(cells=4))
    assert list(surface_table(scattered, trials_table(scattered, made)).columns) == list(cells.columns)


def test_chosen_axes_put_cells_together(tmp_path: Path) -> None:
    of = study()
    cells = surface_table(of, trials_table(of, ledger(tmp_path, of)), axes=["task.vocab_size"])
    assert cells["task.vocab_size"].tolist() == [64, 256, 1024]
    assert cells["finished"].tolist() == [28, 28, 28]


def plane(axes: dict[str, object], **changes: object) -> Plane:
    return Plane.of(study(axes=axes, **changes))


def test_planes() -> None:
    rates, vocab = Log(1e-4, 1e-1, points=3), Choice(64, 256)
    assert plane({}) == Plane(None, None, (), (), points=False)
    assert plane({"optimizer.learning_rate": rates}) == Plane("optimizer.learning_rate", None, (), (), points=False)
    three = {
        "task.vocab_size": vocab,
        "optimizer.learning_rate": rates,
        "budget": Choice(Steps(9, batch_size=4), Coverage(9, steps=9)),
    }
    assert plane(three) == Plane("optimizer.learning_rate", "task.vocab_size", ("budget",), (), points=False)
    turned = plane(three, map=("budget", "optimizer.learning_rate"))
    assert turned == Plane("budget", "optimizer.learning_rate", ("task.vocab_size",), (), points=False)
    free = {**three, "optimizer.weight_decay": Span(0.0, 0.1)}
    assert plane(free, search=Random(cells=4)) == Plane(
        "optimizer.learning_rate", "task.vocab_size", ("budget",), ("optimizer.weight_decay",), points=True
    )
    assert not plane({"task.vocab_size": vocab}, search=Random(cells=2)).points


def test_values_keep_their_order(tmp_path: Path) -> None:
    of: Study = study(
        axes={"task.vocab_size": Choice(256, 64), "head": Choice(LowRank(rank=8), Linear())}, replicates=1
    )
    table = trials_table(of, ledger(tmp_path, of))
    assert axis_values(of, "task.vocab_size", table) == [64, 256]
    assert axis_values(of, "head", table) == ["low_rank(8)", "linear()"]
    groups = [values for values, _ in split(of, table, ("task.vocab_size", "head"))]
    assert groups[0] == {"task.vocab_size": 64, "head": "low_rank(8)"}
    assert len(groups) == 4
