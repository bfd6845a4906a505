"""What the map says in a terminal of 100 columns, with and without colour and Unicode."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from test_report_example import ledger, study

from isoloss import Choice, Log, Random, Study
from isoloss.analysis.surface import waiting_table
from isoloss.analysis.table import trials_table
from isoloss.report.marks import code, tally
from isoloss.report.terminal import terminal_map
from isoloss.report.words import axis_names, excess, value_texts
from isoloss.run.ledger import Ledger


def printed(of: Study, made: Ledger, encoding: str = "utf-8", colour: bool = False, width: int = 100) -> str:
    from rich.console import Console

    sink = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=sink, width=width, force_terminal=colour, color_system="standard" if colour else None)
    terminal_map(of, trials_table(of, made), console, waiting_table(of, made))
    sink.seek(0)
    return sink.read()


def test_the_map(tmp_path: Path) -> None:
    of = study()
    text = printed(of, ledger(tmp_path, of))
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 100
    assert "budget steps(300, batch_size=32)" in lines
    assert "vocab size  1e-4        3.2e-4      1e-3        3.2e-3      1e-2        3.2e-2      1e-1" in text
    assert "     1,024  u    6.80   u    6.51   u    5.68   u    3.35   u    0.58   p    1.52   D1N1 6.93" in text
    assert "C converged   u undertrained   p plateaued   D diverged   N nonfinite" in lines
    flat = " ".join(text.split())
    assert (
        "vocab size 1,024, budget steps(300, batch_size=32): no learning rate converges; sensitivity 3.90 ± 0.05"
        in flat
    )
    assert "converges from 3.2e-3 to 1e-1 (upper end is only a bound)" in flat


def test_plain_ascii_and_colour(tmp_path: Path) -> None:
    of = study()
    made = ledger(tmp_path, of, lambda number, trial: number % 4 != 0)
    plain = printed(of, made, encoding="ascii")
    assert plain.isascii()
    assert "u1~1" in plain
    assert "\x1b[" in printed(of, made, colour=True)


def test_nothing_finished(tmp_path: Path) -> None:
    of = study()
    assert printed(of, ledger(tmp_path, of, lambda number, trial: False)).startswith("No trial has finished yet")


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"optimizer.learning_rate": Log(1e-4, 1e-1, points=7)},
        {"task.vocab_size": Choice(64, 256)},
        {"task.vocab_size": Choice(64, 1024), "optimizer.learning_rate": Log(1e-4, 1e-1, points=30)},
    ],
)
def test_few_axes_and_wide_ones_fit(tmp_path: Path, axes: dict[str, object]) -> None:
    of = study(axes=axes)
    text = printed(of, ledger(tmp_path, of), width=80)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "undertrained" in text


def test_scattered_trials_are_binned(tmp_path: Path) -> None:
    of = study(axes={"optimizer.learning_rate": Log(1e-4, 1e-1)}, search=Random(cells=4), replicates=1)
    made = Ledger(tmp_path)
    made.open(of, {"device": "cpu"})
    from test_report_example import finish

    for number, rate in enumerate((1.1e-4, 1.2e-4, 2e-2, 9e-2)):
        cell = of.cell({"optimizer.learning_rate": rate})
        trial = of.trial(cell, 0)
        made.claim(number, trial.key, cell, 0)
        finish(made, trial)
    text = printed(of, made)
    # Eight bins over three decades: the first is 1e-4 to 2.4e-4, with its middle at 1.5e-4.
    assert "1.5e-4" in text
    assert "scattered axes are in bins" in " ".join(text.split())
    assert "by trapezoids in the logarithm" in " ".join(text.split())


def test_cells_in_letters_and_words() -> None:
    cell = dict.fromkeys(("undertrained", "plateaued", "diverged", "nonfinite", "pending", "given_up", "missing"), 0)
    assert code({**cell, "converged": 2}) == "C"
    assert code({**cell, "converged": 1, "undertrained": 1}) == "C1u1"
    assert code({**cell, "converged": 2, "missing": 1}) == "C2·1"
    assert code({**cell, "converged": 0, "missing": 3}) == "·"
    assert tally({**cell, "converged": 1, "given_up": 1}) == "1/2 converged, 1/2 given up"


def test_numbers_and_names() -> None:
    assert value_texts([1e-4, 0.000316227766017, 0.1]) == ["1e-4", "3.2e-4", "1e-1"]
    assert value_texts([1.01e-3, 1.02e-3]) == ["1.01e-3", "1.02e-3"]
    assert value_texts([1024, 131072]) == ["1,024", "131,072"]
    assert value_texts([0.5, 12.25]) == ["0.5", "12.25"]
    assert value_texts([True, False]) == ["True", "False"]
    assert [excess(value) for value in (0.0004, 0.0123, 0.123, 1.234, 12.34, 123.4, 1e30, float("nan"))] == [
        *("0.000", "0.012", "0.12", "1.23", "12.3", "123", "1e+30", "–"),
    ]
    assert axis_names(study()) == {
        "task.vocab_size": "vocab size",
        "optimizer.learning_rate": "learning rate",
        "budget": "budget",
    }


def test_the_terminal_loads_no_drawing_library() -> None:
    program = (
        "import sys, isoloss.report.terminal; print([m for m in ('plotly', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
