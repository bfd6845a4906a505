"""The best learning rate against parabolas that are known, and its intervals against tests of the slope."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp
from test_report_example import study

from isoloss import Choice, Log, Random
from isoloss.analysis.best_rate import COLUMNS, best_rate_table
from isoloss.analysis.parabola import allowing_for, coefficients, parabola, through_fourth

RATE, V = "optimizer.learning_rate", "task.vocab_size"
INITIAL = 5.0
X = np.linspace(-4, -1, 7)


def grid(replicates: int) -> object:
    return study(axes={V: Choice(64, 256), RATE: Log(1e-4, 1e-1, points=7)}, replicates=replicates)


def trials(loss_RP: np.ndarray) -> pd.DataFrame:
    replicate, place = np.indices(loss_RP.shape)
    loss = loss_RP.ravel()
    rates = np.array(grid(1).axes[RATE].grid())
    return pd.DataFrame(
        {
            V: 64,
            RATE: rates[place.ravel()],
            "replicate": replicate.ravel(),
            "capped_excess": np.minimum(loss, INITIAL),
            "initial_loss": INITIAL,
            "floor": 0.0,
            "ended": np.where(loss > INITIAL, "above_initial", "budget"),
        }
    )


def test_a_parabola_is_found_exactly() -> None:
    # In the logarithm of the loss, with its lowest point at a rate of the grid, so that it does not dip.
    lifted = np.array([[-0.1], [0.0], [0.1]])
    row = best_rate_table(grid(3), trials(0.3 * np.exp(0.7 * (X + 2.5) ** 2 + lifted))).to_dict("records")[0]
    assert math.log10(row["best_rate"]) == pytest.approx(-2.5, abs=1e-6)
    assert row["loss"] == pytest.approx(0.3)
    # Only the height differs between replicates: 4.303 = t(0.975, 2), sd 0.1.
    assert math.log(row["loss_high"] / 0.3) == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-5)
    # The slopes are equal: what remains is a curvature that changes by a fifth over a decade, at rates 0.5 apart.
    assert math.log10(row["best_rate_high"]) + 2.5 == pytest.approx(4.302653 * 0.2 * 0.5**2 / 6, rel=1e-5)
    assert (row["rates"], row["replicates"], row["degrees"]) == (3, 3, 2)
    assert (row["fitted_from"], row["fitted_to"]) == pytest.approx((1e-3, 1e-2))
    assert row["convex"]
    assert not row["at_edge"]


def test_rates_at_the_cap_are_left_out() -> None:
    # A cliff at the rate after the best one, in one replicate: the parabola stands on the three before it.
    loss_RP = np.tile(0.3 + 0.7 * (X + 2.4) ** 2, (3, 1))
    loss_RP[1, 4:] = 99.0
    row = best_rate_table(grid(3), trials(loss_RP)).to_dict("records")[0]
    assert row["fitted_to"] == pytest.approx(10**-2.5)
    assert math.log10(row["best_rate"]) == pytest.approx(-2.5)
    assert row["at_edge"]


def test_edges_and_curves_without_a_lowest_point() -> None:
    falling = best_rate_table(grid(2), trials(np.tile(0.3 + 0.2 * (X + 0.5) ** 2, (2, 1)))).to_dict("records")[0]
    assert (falling["at_edge"], falling["convex"]) == (True, True)
    assert falling["best_rate"] == pytest.approx(0.1)
    concave = best_rate_table(grid(2), trials(np.tile(2 * np.exp(-0.2 * (X + 3) ** 2), (2, 1)))).to_dict("records")[0]
    assert (concave["convex"], concave["best_rate"]) == (False, pytest.approx(0.1))
    assert math.isnan(concave["best_rate_low"])


def test_one_replicate_tells_by_its_residuals() -> None:
    ripple = 0.02 * np.array([1, -1, 1, -1, 1, -1, 1])
    row = best_rate_table(grid(1), trials((0.3 * np.exp(0.7 * (X + 2.5) ** 2 + ripple))[None])).to_dict("records")[0]
    assert (row["rates"], row["degrees"]) == (5, 2)
    assert row["best_rate_low"] < 10**-2.5 < row["best_rate_high"]
    assert row["loss_low"] < 0.3 < row["loss_high"]


def test_the_interval_is_where_a_t_test_of_the_slope_does_not_reject() -> None:
    rng = np.random.default_rng(5)
    x = np.array([-0.5, 0.0, 0.5])
    loss = 0.3 + 0.8 * (x - 0.1) ** 2 + 0.03 * rng.standard_normal((6, 3))
    low, high = parabola(x, loss).vertex_interval()
    slopes = [np.polyfit(x, one, 2) for one in loss]
    for end in (low, high):
        p = ttest_1samp([2 * c * end + b for c, b, _ in slopes], 0.0).pvalue
        assert p == pytest.approx(0.05, rel=1e-6)
    flat = 0.3 + 0.02 * x**2 + 0.1 * rng.standard_normal((4, 3))
    assert parabola(x, flat).vertex_interval() == (-math.inf, math.inf)


def test_a_fourth_rate_tells_that_the_loss_is_no_parabola() -> None:
    # Without noise, the vertex moves half of the way to that of the parabola through -1, -0.5 and 0.
    x = np.array([-0.5, 0.0, 0.5, -1.0])
    loss = np.tile(x**2 + 0.2 * np.exp(x / 0.2), (5, 1))
    other = through_fourth(x, loss)
    exact = np.polyfit(x[[0, 1, 3]], loss[0][[0, 1, 3]], 2)[::-1]
    assert other == pytest.approx(exact)
    found = parabola(x[:3], loss[:, :3])
    moved = allowing_for(found, other, 0.5, found.at(found.vertex) + 0.1)
    way = -exact[1] / (2 * exact[2]) - found.vertex
    assert abs(way) < 0.5
    assert moved.shift == pytest.approx(way / 2)
    assert moved.rate_error == pytest.approx(math.hypot(way / math.sqrt(12), 0.2 * 0.5**2 / 6))
    drop = np.polyval(exact[::-1], found.vertex + way) - found.at(found.vertex)
    assert moved.loss_error == pytest.approx(math.hypot(drop / 2, 0.1 / math.sqrt(12)))
    # A parabola has no such way.
    square = np.tile(2 * (x - 0.1) ** 2, (5, 1))
    assert through_fourth(x, square) == pytest.approx(coefficients(x[:3], square[:, :3])[0])


def test_no_loss_is_above_the_initial_one() -> None:
    rng = np.random.default_rng(4)
    row = best_rate_table(grid(2), trials(np.exp(0.3 * (X + 2.5) ** 2 + 0.3 * rng.standard_normal((2, 7))))).iloc[0]
    assert row["loss_high"] <= INITIAL + 1e-9
    assert row["loss_low"] < row["loss"] < row["loss_high"]


def test_no_rows_off_the_grid() -> None:
    scattered = study(axes={V: Choice(64, 256), RATE: Log(1e-4, 1.0)}, search=Random(cells=4))
    for of, frame in ((scattered, trials(np.ones((1, 7)))), (grid(1), pd.DataFrame())):
        empty = best_rate_table(of, frame)
        assert list(empty.columns) == [V, *COLUMNS]
        assert not len(empty)
