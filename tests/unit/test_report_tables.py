"""Tables of a page: numbers beside their intervals, what is equal in all rows once, headings for readers."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from test_report_example import study

from isoloss import Choice
from isoloss.report.tables import MOST_ROWS, columns, interval, measure_table, number, table, with_interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((1.2, "1.20"), (0.48, "0.480"), (0.0123456, "0.0123"), (8.137e-5, "8.14e-05"), (0.0, "0"), (3.0, "3")),
        *((1234.5, "1,230"), (3493440, "3,493,440"), (9.117e11, "9.12e+11"), (-0.5, "-0.500")),
        *((True, "yes"), (False, "no"), (None, "–"), (math.nan, "–"), (math.inf, "∞"), ("a\nb", "a b")),
    ],
)
def test_numbers_have_three_significant_digits(value: object, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.1234, 0.1011, 0.1456, "0.123 (0.101 to 0.146)"),
        (2.0, 1.0, 3.0, "2.00 (1.00 to 3.00)"),
        # The digits of the number tell the ends of a narrow interval apart.
        (3.9, 3.8996, 3.9004, "3.90000 (3.89960 to 3.90040)"),
        (0.5, math.nan, math.nan, "0.500"),
        (0.5, 0.25, math.nan, "0.500 (at least 0.250)"),
        (1e-5, 0.9e-5, 1.2e-5, "1.00e-05 (9.00e-06 to 1.20e-05)"),
    ],
)
def test_a_number_stands_with_its_interval(value: float, low: float, high: float, text: str) -> None:
    assert with_interval(value, low, high) == text


def test_learning_rates_read_as_on_maps() -> None:
    assert with_interval(3.162e-4, 1e-4, 1e-3, rate=True) == "3.2e-4 (1e-4 to 1e-3)"
    assert interval(math.nan, 1e-3, rate=True) == "at most 1e-3"


def test_intervals_join_the_number_that_they_belong_to() -> None:
    names = ["sensitivity", "sensitivity_low", "sensitivity_high", "sensitivity_boot_low", "sensitivity_boot_high",
             "difference", "low", "high", "boot_low", "boot_high", "band", "band_low", "band_high", "learning_rate_low",
             "learning_rate_high", "p_holm"]  # fmt: skip
    row = dict.fromkeys(names, 0.25) | {"band": "open", "learning_rate_high": 0.5}
    shown = {column.heading: column.text(row) for column in columns(study(), names)}
    assert shown == {
        "sensitivity (nats)": "0.250 (0.250 to 0.250)",
        "sensitivity (bootstrap 95 % interval, nats)": "0.250 to 0.250",
        "difference (nats)": "0.250 (0.250 to 0.250)",
        "bootstrap 95 % interval": "0.250 to 0.250",
        "band": "open (2.5e-1 to 2.5e-1)",
        "learning rate (from, to)": "2.5e-1 to 5e-1",
        "p (Holm)": "0.250",
    }
    names = ["lowest", "lowest_from", "lowest_to", "fitted_from", "fitted_to"]
    shown = {column.heading: column.text(dict.fromkeys(names, 0.01)) for column in columns(study(), names)}
    assert shown == {
        "lowest learning rate": "1e-2 (1e-2 to 1e-2)",
        "learning rates fitted (from, to)": "1e-2 to 1e-2",
    }


def test_what_is_equal_in_all_rows_is_said_once() -> None:
    frame = pd.DataFrame({"task.vocab_size": [64, 256], "method": ["grid", "grid"], "sensitivity": [1.0, 2.5]})
    text = measure_table(study(), frame, "Sensitivity", "sensitivity.parquet")
    assert "The same in all 2 rows: method: grid." in text
    assert "<caption>Sensitivity by vocab size</caption>" in text
    assert '<th scope="col">vocab size</th><th scope="col">sensitivity (nats)</th>' in text
    assert '<th scope="row">256</th><td>2.50</td>' in text


def test_many_rows_are_cut_and_the_rest_is_named() -> None:
    of = study(axes={"task.vocab_size": Choice(*range(2, 102))})
    frame = pd.DataFrame({"task.vocab_size": range(2, 102), "sensitivity": [i / 7 for i in range(100)]})
    text = measure_table(of, frame, "Sensitivity", "sensitivity.parquet")
    assert text.count('scope="row"') == MOST_ROWS
    assert "The first 60 of 100 rows; sensitivity.parquet holds all." in text


def test_rows_without_numbers_are_left_out_and_the_most_probable_stand_first() -> None:
    frame = pd.DataFrame({
        "task.vocab_size": [64, 256, 1024], "replicate": [0, 1, 2], "probability": [0.25, math.nan, 0.75],
        "onset_step": [math.nan, math.nan, 500.0], "kind": ["none", "unknown", "rises"],
    })  # fmt: skip
    text = measure_table(study(), frame, "Onset", "onset.parquet")
    assert "1 of 3 rows have no number and are left out." in text
    assert text.index(">1,024<") < text.index(">64<")
    assert ">256<" not in text
    empty = measure_table(study(), frame.iloc[[1, 1]], "Onset", "onset.parquet")
    assert "2 of 2 rows have no number and are left out." in empty
    assert "<table>" not in empty


def test_what_is_all_that_every_row_says_stands_in_place_of_a_table() -> None:
    frame = pd.DataFrame({"task.vocab_size": [64, 256], "closed": [True, True], "lowest": [math.nan, math.nan]})
    text = measure_table(study(), frame, "Range", "stable_range.parquet")
    assert text == '<p class="note">The same in all 2 rows: closed: yes.</p>'


def test_a_table_scrolls_by_keyboard_and_escapes_its_texts() -> None:
    text = table("<b>", ["<i>"], [["<script>"]])
    assert 'role="region" tabindex="0" aria-label="&lt;b&gt;"' in text
    assert "<script>" not in text
    assert "<i>" not in text
