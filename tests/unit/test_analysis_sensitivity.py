"""Sensitivity and band against values worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from test_report_example import FINAL, ledger, study

from isoloss import Choice, Log, Random, Span
from isoloss.analysis.sensitivity import OVER_GRID, OVER_LOG, band, sensitivity, sensitivity_table, why_not
from isoloss.analysis.surface import records
from isoloss.analysis.table import trials_table

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
