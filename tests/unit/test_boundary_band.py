"""The band along one parameter against boundaries that are known, and the documented example."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.stats import norm

from isoloss.search import BoundaryMap, band
from isoloss.search.boundary.band import longest_run
from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import Seen
from isoloss.search.boundary.space import Space

DOCS = Path(__file__).parents[2] / "docs"
LR = FloatDistribution(1e-4, 1.0, log=True)


class Fixed(BoundaryMap):
    """A map whose draws are given: shares of converging seeds as a function of the points."""

    def __init__(self, space: Space, rows: Any) -> None:
        self.space, self.rows = space, rows

    def draws(self, points_PD: Array, count: int, rng: np.random.Generator) -> Array:
        return np.stack([np.asarray(self.rows(s, points_PD), dtype=float) for s in range(count)])


# --- runs


def naive_run(row: Any) -> tuple[int, int, int]:
    runs, start = [], None
    for place, inside in enumerate([*row, False]):
        if inside and start is None:
            start = place
        if not inside and start is not None:
            runs.append((start, place - 1))
            start = None
    if not runs:
        return 0, 0, 0
    longest = max(runs, key=lambda one: one[1] - one[0])  # the first of equals
    return *longest, len(runs)


def test_longest_run_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.random((200, 13)) < share for share in (0.2, 0.5, 0.9)])
    rows = np.concatenate([rows, np.zeros((1, 13), dtype=bool), np.ones((1, 13), dtype=bool)])
    found = np.stack(longest_run(rows), axis=1)
    np.testing.assert_array_equal(found, [naive_run(row) for row in rows])
    np.testing.assert_array_equal(np.stack(longest_run(np.array([[True], [False]])), axis=1), [[0, 0, 1], [0, 0, 0]])


# --- ends of given draws


def test_ends_intervals_and_widths_of_known_draws() -> None:
    # Draw s has the band from 0.2 to 0.5 + s / 1000, so that its end is uniform on 0.5 to 0.9.
    space = Space({"x": FloatDistribution(0.0, 1.0)})
    known = Fixed(space, lambda s, points: (points[:, 0] > 0.2) & (points[:, 0] < 0.5 + s / 1000.0))
    found = band(known, "x", {}, draws=400)
    assert found.closed == found.islands == 0.0
    assert found.low is not None
    assert found.high is not None
    step = 1.0 / 200
    assert found.low.value == pytest.approx(0.2, abs=step)
    assert found.low.width == 0.0
    assert found.high.value == pytest.approx(0.7, abs=step)
    np.testing.assert_allclose(found.high.interval, [0.52, 0.88], atol=step)
    assert found.high.width == pytest.approx(0.36, abs=2 * step)
    assert found.low.bound == found.high.bound == 0.0
    assert found.high.fringe == pytest.approx(step)  # a share that jumps from 1 to 0


def test_the_fringe_of_a_known_share() -> None:
    # The share of seeds falls as a probit of width 0.08 in log10, so that from 0.9 to 0.1 it is 2 x 1.2816 x 0.08.
    space = Space({"lr": LR, "x": FloatDistribution(0.0, 1.0)})
    known = Fixed(space, lambda s, points: norm.cdf((-1.5 - (4.0 * points[:, 0] - 4.0)) / 0.08))
    found = band(known, "lr", {"x": 0.5}, draws=3)
    assert found.low is not None
    assert found.high is not None
    assert math.log10(found.high.value) == pytest.approx(-1.5, abs=0.02)
    assert found.high.fringe == pytest.approx(2 * 1.2816 * 0.08, abs=0.04)  # two steps of 4 / 200 decades
    assert found.high.bound == 0.0
    assert found.low.value == 1e-4
    assert found.low.bound == 1.0
    # A stricter level ends earlier: 0.9 at 1.2816 widths before.
    strict = band(known, "lr", {"x": 0.5}, level=0.9, draws=3)
    assert strict.high is not None
    assert math.log10(strict.high.value) == pytest.approx(-1.5 - 1.2816 * 0.08, abs=0.02)


def test_closed_bands_islands_and_bounds() -> None:
    space = Space({"x": FloatDistribution(0.0, 1.0)})
    closed = band(Fixed(space, lambda s, points: np.full(len(points), 1.0 if s < 3 else 0.4)), "x", {}, draws=10)
    assert closed.closed == pytest.approx(0.7)
    assert closed.low is None
    assert closed.high is None
    half = band(Fixed(space, lambda s, points: np.full(len(points), 1.0 if s < 5 else 0.4)), "x", {}, draws=10)
    assert half.closed == pytest.approx(0.5)
    assert half.low is not None
    assert half.high is not None
    assert half.low.bound == half.high.bound == 1.0
    assert (half.low.value, half.high.value) == (0.0, 1.0)

    def islands(s: int, points: Array) -> Any:
        x = points[:, 0]
        return (x > 0.1) & (x < 0.2) & (s % 4 == 0) | (x > 0.5) & (x < 0.9)

    found = band(Fixed(space, islands), "x", {}, draws=40)
    assert found.islands == pytest.approx(0.25)
    assert found.low is not None
    assert found.high is not None
    assert (found.low.value, found.high.value) == pytest.approx((0.5, 0.9), abs=0.005)


@pytest.mark.parametrize(
    ("distribution", "inside", "low", "high"),
    [
        (CategoricalDistribution([256, 16, 64, 1024, 4096]), {64, 256}, 64, 256),
        (CategoricalDistribution([1, 2, 3]), {1, 2}, 1, 2),
        (CategoricalDistribution([8]), {8}, 8, 8),
        (IntDistribution(2, 20, step=3), {5, 8, 11}, 5, 11),
        (IntDistribution(1, 12, log=True), {6, 7, 8, 9, 10}, 6, 10),
        (FloatDistribution(0.0, 1.0, step=0.25), {0.25, 0.5}, 0.25, 0.5),
    ],
)
def test_along_a_list_the_ends_are_its_values(
    distribution: BaseDistribution, inside: set[float], low: float, high: float
) -> None:
    space = Space({"x": FloatDistribution(0.0, 1.0), "n": distribution})
    one = space.dimensions[1]
    known = Fixed(space, lambda s, points: [one.value(x) in inside for x in points[:, 1]])
    found = band(known, "n", {"x": 0.3}, draws=5)
    assert found.low is not None
    assert found.high is not None
    assert (found.low.value, found.high.value) == (low, high)
    assert found.high.interval == (high, high)
    assert found.high.width == 0.0


def test_along_a_long_range_of_whole_numbers_the_band_is_read_at_201_places() -> None:
    space = Space({"n": IntDistribution(1, 100_000, log=True)})
    sizes = []

    def rows(s: int, points: Array) -> Any:
        sizes.append(len(points))
        return points[:, 0] < 0.6

    found = band(Fixed(space, rows), "n", {}, draws=2)
    assert max(sizes) <= 201
    assert found.high is not None
    assert math.log10(found.high.value) == pytest.approx(3.0, abs=0.05)


def test_there_is_no_band_along_what_has_no_order() -> None:
    space = Space({"x": FloatDistribution(0.0, 1.0), "head": CategoricalDistribution(["a", "b"])})
    with pytest.raises(ValueError, match="'head' has no order"):
        band(Fixed(space, lambda s, points: np.ones(len(points))), "head", {"x": 0.5})


# --- ends of a map of plenty of data


def test_a_map_of_plenty_of_data_has_the_band_where_it_is() -> None:
    space = Space({"lr": LR, "v": CategoricalDistribution([64, 256, 1024])})
    exponent = np.tile(-4.0 + 4.0 * (np.arange(80) + 0.5) / 80, 3)
    place = np.repeat(np.arange(3), 80)
    top, bottom = -1.0 - 0.3 * place, -3.2 + 0.2 * place
    excess = np.where(exponent > top, np.inf, bottom - exponent)
    points = np.column_stack([(exponent + 4.0) / 4.0, place / 2.0])
    known = BoundaryMap(space, Seen(points, excess))
    for i, v in enumerate((64, 256, 1024)):
        found = band(known, "lr", {"v": v})
        assert found.closed == 0.0
        assert found.low is not None
        assert found.high is not None
        # At each value of the list, neighbours stand 0.05 decades apart; readings tell more than outcomes.
        assert math.log10(found.high.value) == pytest.approx(-1.0 - 0.3 * i, abs=0.05)
        assert math.log10(found.low.value) == pytest.approx(-3.2 + 0.2 * i, abs=0.03)
        assert found.high.interval[0] <= 10.0 ** (-1.0 - 0.3 * i + 0.03)
        assert found.high.interval[1] >= 10.0 ** (-1.0 - 0.3 * i - 0.03)
        assert found.high.width == pytest.approx(math.log10(found.high.interval[1] / found.high.interval[0]), abs=1e-9)
        assert found.high.bound < 0.01
        assert found.low.bound < 0.01


def test_the_fringe_of_a_noisy_edge_is_found() -> None:
    space = Space({"x": FloatDistribution(0.0, 1.0)})
    rng = np.random.default_rng(1)
    x = rng.random(500)
    share = norm.cdf((0.6 - x) / 0.1)
    known = BoundaryMap(space, Seen(x[:, None], np.where(rng.random(500) < share, -np.inf, np.inf)))
    found = band(known, "x", {})
    assert found.high is not None
    assert found.high.value == pytest.approx(0.6, abs=0.04)
    # 500 yes and no, of which a quarter in the fringe, tell the width to some 15 %; the prior is smooth besides.
    assert found.high.fringe == pytest.approx(2 * 1.2816 * 0.1, rel=0.35)
    assert found.high.interval[0] < 0.6 < found.high.interval[1]


# --- the documentation


@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n", (DOCS / "boundary-sampler.md").read_text()))))
def test_the_code_of_the_documentation_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    block = re.findall(r"```python\n(.*?)```", (DOCS / "boundary-sampler.md").read_text(), re.DOTALL)[number]
    exec(compile(block, f"boundary-sampler.md, block {number}", "exec"), {"__name__": "__main__"})
    assert "Traceback" not in capsys.readouterr().out
