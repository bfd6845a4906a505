"""Stable ranges on grids against ends worked out by hand, and their intervals against a finer integration."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from test_report_example import study

from isoloss import Choice, Log, Random
from isoloss.analysis.stable_range import COLUMNS, SPREADS, longest, mean_interval, stable_range_table

RATE, V = "optimizer.learning_rate", "task.vocab_size"
RATES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
GRID = study(axes={V: Choice(64, 256), RATE: Choice(*RATES)}, replicates=3)


def trials(letters: dict[int, list[str]]) -> pd.DataFrame:
    """Return trials from one text a replicate: C where it converges, a dot where it has not finished."""
    rows = [
        {V: size, RATE: rate, "replicate": replicate, "outcome": "converged" if letter == "C" else "diverged"}
        for size, texts in letters.items()
        for replicate, text in enumerate(texts)
        for rate, letter in zip(RATES, text, strict=True)
        if letter != "."
    ]
    return pd.DataFrame(rows)


def test_ends_are_the_geometric_mean_of_the_middles() -> None:
    found, closed = stable_range_table(GRID, trials({64: ["xCCxx", "xCCxx", "xxCCx"], 256: ["xxxxx"] * 3})).to_dict(
        "records"
    )
    # The lower ends lie between -4 and -3, twice, and between -3 and -2: middles -3.5, -3.5, -2.5.
    assert math.log10(found["lowest"]) == pytest.approx(-9.5 / 3)
    assert math.log10(found["highest"]) == pytest.approx((-1.5 - 1.5 - 0.5) / 3)
    assert (found["closed"], found["open"], found["replicates"], found["gaps"]) == (False, 3, 3, 0)
    assert not found["lowest_is_bound"]
    assert found["lowest_low"] < found["lowest"] < found["lowest_high"] < 1e-2
    assert closed["closed"]
    assert closed["open"] == 0
    assert math.isnan(closed["lowest"])


def test_ends_of_the_range_and_unfinished_trials_bound() -> None:
    row = stable_range_table(GRID, trials({64: ["CCCxx", "CCC.x", "xCC.."]})).to_dict("records")[0]
    # Two replicates converge from the first rate on, the third from between -4 and -3.
    assert math.log10(row["lowest"]) == pytest.approx((-4 - 4 - 3.5) / 3)
    assert row["lowest_is_bound"]
    assert math.isnan(row["lowest_low"])
    assert row["lowest_high"] < 1e-2
    # Upper ends: -2 to -1; -2 to 0, since -1 has not finished; beyond -2.
    assert math.log10(row["highest"]) == pytest.approx((-1.5 - 1.0 - 2.0) / 3)
    assert row["highest_is_bound"]
    assert math.isnan(row["highest_high"])


def test_the_longest_stretch_counts() -> None:
    assert longest([True, False, True, True, False, True]) == (2, 3)
    assert longest([True, False, True]) == (0, 0)
    assert longest([False, False]) is None
    row = stable_range_table(GRID, trials({64: ["CxCCx", "CxCCx"]})).to_dict("records")[0]
    assert row["gaps"] == 2
    assert math.log10(row["lowest"]) == pytest.approx(-2.5)


@pytest.mark.parametrize(
    "brackets",
    [[(-3.0, -2.0)] * 3, [(-3.0, -2.5), (-2.5, -2.0), (-2.5, -2.0)], [(-3.0, -2.5)] * 4 + [(-2.5, math.inf)]],
)
def test_the_interval_is_the_posterior_of_the_mean(brackets: list[tuple[float, float]]) -> None:
    low, high = mean_interval(brackets)

    mean_M, log_spread_S = np.linspace(-4.5, -0.5, 801)[:, None], np.linspace(*np.log(SPREADS), 400)
    spread_S = np.exp(log_spread_S)
    inside = [norm.cdf((b - mean_M) / spread_S) - norm.cdf((a - mean_M) / spread_S) for a, b in brackets]
    share_M = np.trapezoid(np.prod(inside, axis=0), log_spread_S, axis=1).cumsum()
    expected = np.interp([0.025, 0.975], share_M / share_M[-1], mean_M[:, 0])
    assert [low, high] == pytest.approx(expected, abs=0.02)


def test_no_interval_from_one_replicate_and_no_rows_off_the_grid() -> None:
    row = stable_range_table(GRID, trials({64: ["xCCxx"]})).to_dict("records")[0]
    assert math.log10(row["lowest"]) == pytest.approx(-3.5)
    assert math.isnan(row["lowest_low"])
    scattered = study(axes={V: Choice(64, 256), RATE: Log(1e-4, 1.0)}, search=Random(cells=4))
    for of, frame in ((scattered, trials({64: ["xCCxx"]})), (GRID, pd.DataFrame())):
        empty = stable_range_table(of, frame)
        assert list(empty.columns) == [V, *COLUMNS]
        assert not len(empty)
