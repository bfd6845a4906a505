"""Sensitivity and band against values worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_report_example import FINAL, ledger, study

from isoloss import Choice, Grid, Linear, Log, LowRank, Random, Span, Study
from isoloss.analysis.fitted_sensitivity import COLUMNS as FITTED_COLUMNS
from isoloss.analysis.fitted_sensitivity import fitted_sensitivity_table
from isoloss.analysis.fitted_surface import local_noise
from isoloss.analysis.sensitivity import (
    OVER_GRID,
    OVER_LOG,
    band,
    sensitivity,
    sensitivity_table,
    why_not,
    widened_interval,
)
from isoloss.analysis.statistics import bootstrap_interval
from isoloss.analysis.surface import records
from isoloss.analysis.table import axis_value, trials_table
from isoloss.search.boundary.kernel import Kernel
from isoloss.search.boundary.process import Posterior, Prior, Sites
from isoloss.search.points import random_cells

RATE = "optimizer.learning_rate"


def test_mean_over_a_grid() -> None:
    # Excess 4, 1, 0, 3 above a lowest of 0, then the same raised by 2: (4 + 1 + 0 + 3) / 4 = 2.
    assert sensitivity([1, 2, 3, 4], [4, 1, 0, 3], evenly=True) == 2
    assert sensitivity([1, 2, 3, 4], [6, 3, 2, 5], evenly=True) == 2
    assert sensitivity([1, 2, 3], [0.7, 0.7, 0.7], evenly=True) == 0


def test_trapezoid_in_the_logarithm() -> None:
    # Piecewise linear in log10(rate) at 0, 1 and 4 with heights 0, 1, 0: area 1 * 4 / 2 = 2 over a range of 4.
    assert sensitivity([1, 10, 10_000], [5, 6, 5], evenly=False) == pytest.approx(0.5)
    # A straight line from 0 to 3 has mean 3 / 2, however unevenly it is sampled.
    rates = [1e-4, 2e-4, 5e-3, 1e-1]
    line = [math.log10(rate / 1e-4) for rate in rates]
    assert sensitivity(rates, line, evenly=False) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("converged", "expected"),
    [
        ([False, True, True, False], ("open", 2, 3, False, False, 0)),
        ([True, True, True, True], ("open", 1, 4, True, True, 0)),
        ([False, False, True, True], ("open", 3, 4, False, True, 0)),
        ([True, False, False, True], ("open", 1, 4, True, True, 2)),
        ([None, True, None, False], ("open", 2, 2, True, True, 0)),
        ([False, True, None, True], ("open", 2, 4, False, True, 0)),
        ([False, False, False, False], ("closed", None, None, False, False, 0)),
        ([False, None, False, False], ("unknown", None, None, False, False, 0)),
    ],
)
def test_bands(converged: list[bool | None], expected: tuple[object, ...]) -> None:
    found = [
        None if isinstance(value, float) and math.isnan(value) else value
        for value in band([1, 2, 3, 4], converged).values()
    ]
    assert tuple(found) == expected


def test_a_grid_by_hand(tmp_path: Path) -> None:
    of = study(axes={"task.vocab_size": Choice(64, 1024), RATE: Log(1e-4, 1e-1, points=7)})
    rows = records(sensitivity_table(of, trials_table(of, ledger(tmp_path, of))))
    assert [row["task.vocab_size"] for row in rows] == [64, 1024]
    # V = 64: the second replicate ends 3 % higher above 0.1 nats and 40 % lower below, which leaves rows of
    first = sum(FINAL[64]) / 7 - 0.0001
    second = (1.03 * (3.28 + 2.46 + 0.33) + 0.6 * (0.002 + 0.0004 + 0.0001 + 0.0004)) / 7 - 0.6 * 0.0001
    assert rows[0]["sensitivity"] == pytest.approx((first + second) / 2, rel=1e-6)
    assert rows[0]["sensitivity_sd"] == pytest.approx(abs(first - second) / math.sqrt(2), rel=1e-6)
    assert (rows[0]["learning_rate_low"], rows[0]["learning_rate_high"], rows[0]["learning_rates"]) == (1e-4, 0.1, 7)
    assert (rows[0]["band"], rows[0]["band_low"], rows[0]["band_high"]) == ("open", 0.00316227766017, 0.1)
    assert (rows[0]["band_low_is_bound"], rows[0]["band_high_is_bound"]) == (False, True)
    assert rows[0]["best_learning_rate"] == 0.0316227766017
    assert (rows[0]["method"], rows[0]["replicates"]) == (OVER_GRID, 2)
    # V = 1024: at 1e-1 both replicates were stopped, so both count with ln(1024) there; losses never exceed it.
    stopped = math.log(1024)
    first = (6.74 + 6.41 + 5.60 + 3.3 + 0.57 + 1.5 + stopped) / 7 - 0.57
    capped = [min(1.03 * loss, 0.99 * stopped) for loss in (6.74, 6.41, 5.60, 3.3, 0.57, 1.5)]
    second = (sum(capped) + stopped) / 7 - 1.03 * 0.57
    assert rows[1]["sensitivity"] == pytest.approx((first + second) / 2, rel=1e-6)
    assert rows[1]["band"] == "closed"


def test_a_replicate_with_a_hole_does_not_count(tmp_path: Path) -> None:
    of = study(axes={RATE: Log(1e-4, 1e-1, points=7)})
    row = records(sensitivity_table(of, trials_table(of, ledger(tmp_path, of, lambda number, _: number != 9))))[0]
    assert row["replicates"] == 1
    assert row["sensitivity"] == pytest.approx(sum(FINAL[64]) / 7 - 0.0001, rel=1e-6)
    assert math.isnan(row["sensitivity_sd"])
    assert not row["band_low_is_bound"]


def test_scattered_learning_rates() -> None:
    of = study(axes={RATE: Log(1e-4, 1e-1)}, search=Random(cells=3), replicates=1)
    table = pd.DataFrame(
        {
            RATE: [1e-1, 1e-4, 1e-3],
            "replicate": [0, 0, 0],
            "capped_excess": [1.0, 1.0, 4.0],
            "outcome": ["converged", "plateaued", "plateaued"],
        }
    )
    # Heights 0, 3, 0 at log10 -4, -3, -1: area 3 * 3 / 2 over a range of 3.
    row = records(sensitivity_table(of, table))[0]
    assert row["sensitivity"] == pytest.approx(1.5)
    assert (row["method"], row["band_low"], row["band_high_is_bound"]) == (OVER_LOG, 0.1, True)


def test_where_it_means_nothing() -> None:
    with pytest.raises(ValueError, match=r"no axis 'optimizer\.learning_rate'"):
        sensitivity_table(study(axes={"task.vocab_size": Choice(64, 256)}), pd.DataFrame())
    free = study(axes={RATE: Log(1e-4, 1e-1), "optimizer.weight_decay": Span(0.0, 0.1)}, search=Random(cells=4))
    assert "'optimizer.weight_decay' varies freely" in why_not(free)
    assert why_not(study()) == ""


def test_the_interval_is_a_wider_students_t() -> None:
    # Mean 2, sd 1, t(0.975, 2) = 4.302653: half width 4.302653 / sqrt(3), and wider by sqrt(4 / 2).
    low, high = widened_interval([1.0, 2.0, 3.0])
    assert (low + high) / 2 == pytest.approx(2.0)
    assert (high - low) / 2 == pytest.approx(4.302653 / math.sqrt(3) * math.sqrt(2), rel=1e-6)
    assert all(map(math.isnan, widened_interval([1.0])))


def test_intervals_stand_beside_the_mean() -> None:
    of = study(axes={RATE: Choice(1e-3, 1e-2)}, replicates=6)
    heights = [1.0, 1.2, 0.9, 1.4, 1.1, 1.0]
    frame = pd.DataFrame(
        [
            {RATE: rate, "replicate": i, "capped_excess": 0.1 + (height if rate == 1e-2 else 0), "outcome": "plateaued"}
            for i, height in enumerate(heights)
            for rate in (1e-3, 1e-2)
        ]
    )
    row = records(sensitivity_table(of, frame))[0]
    found = [height / 2 for height in heights]
    assert (row["sensitivity_low"], row["sensitivity_high"]) == pytest.approx(widened_interval(found))
    assert (row["sensitivity_boot_low"], row["sensitivity_boot_high"]) == pytest.approx(bootstrap_interval(found))
    five = records(sensitivity_table(of, frame[frame["replicate"] < 5]))[0]
    assert five["sensitivity_low"] < five["sensitivity"]
    assert math.isnan(five["sensitivity_boot_low"])


def fitted_study(**changes: object) -> Study:
    axes = {"head": Choice(Linear(), LowRank(rank=8)), RATE: Log(1e-4, 1e-1)}
    return study(**{"axes": axes, "search": Random(cells=40), "replicates": 1, **changes})


def fitted_trials(of: Study, seed: int = 0) -> pd.DataFrame:
    """Return noisy parabolas, 1 nat per square decade around 1e-3 and 1e-2, capped at 2 of 4 nats."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        [{path: axis_value(value) for path, value in cell.items()} for cell in random_cells(of, of.search)]
    )
    best = np.where(frame["head"] == "linear", -3.0, -2.0)
    excess = 0.2 + (np.log10(frame[RATE]) - best) ** 2 + 0.03 * rng.standard_normal(len(frame))
    return frame.assign(capped_excess=np.minimum(excess, 2.0), initial_loss=2.5, floor=0.5)


def test_a_fitted_surface_of_scattered_trials() -> None:
    of = fitted_study()
    trials = fitted_trials(of)
    rows = records(fitted_sensitivity_table(of, trials))
    assert [row["head"] for row in rows] == trials["head"].drop_duplicates().sort_values().tolist()
    x = np.linspace(-4, -1, 3001)
    for row, best in zip(rows, (-3.0, -2.0), strict=True):
        truth = float(np.minimum((x - best) ** 2, 1.8).mean())
        assert row["sensitivity_low"] < truth < row["sensitivity_high"]
        assert row["sensitivity"] == pytest.approx(truth, rel=0.1)
        assert (row["learning_rate_low"], row["learning_rate_high"], row["trials"]) == (1e-4, 1e-1, 40)


def test_fitted_surfaces_are_for_scattered_trials_alone() -> None:
    of = fitted_study()
    trials = fitted_trials(of)
    for other, frame in (
        (of, trials.head(15)),
        (fitted_study(axes={RATE: Log(1e-4, 1e-1, points=7)}, search=Grid()), trials),
    ):
        empty = fitted_sensitivity_table(other, frame)
        assert not len(empty)
        assert list(empty.columns) == [*(path for path in other.axes if path != RATE), *FITTED_COLUMNS]
    alike = records(fitted_sensitivity_table(of, trials.assign(capped_excess=1.0)))
    assert [math.isnan(row["sensitivity"]) for row in alike] == [True, True]


def test_local_noise_is_that_of_the_neighbourhood() -> None:
    # Around a known mean of 0, noise of 0.1 on the left and of 1 on the right.
    rng = np.random.default_rng(2)
    points = np.linspace(0, 1, 200)[:, None]
    noise = np.where(points[:, 0] < 0.5, 0.1, 1.0)
    value = noise * rng.standard_normal(200)
    prior = Prior(0.0, Kernel(0.05, np.array([1.0]), np.array([False])), 0.7)
    precision = np.full(200, 0.7**-2)
    found = local_noise(Posterior(prior, points, Sites(precision, precision * value)), points, value)
    assert found[:60] == pytest.approx(0.1, rel=0.35)
    assert found[140:] == pytest.approx(1.0, rel=0.35)
