"""Two studies side by side, against SciPy's t-tests, closed forms and brute force over known losses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from measured_ledgers import HEAD, RANK, RATE, RATES, VOCABULARY, made, study
from scipy.stats import norm, t, ttest_rel
from test_cli import call

from isoloss import AdamW, Choice, Linear, Log, LowRank, Prepared, Size, Study, Text
from isoloss.analysis import compare_bands
from isoloss.analysis.compare import Comparison, compared
from isoloss.analysis.compare_cells import cells_table
from isoloss.analysis.definitions import differing
from isoloss.analysis.difference import difference
from isoloss.analysis.tuning import regret
from isoloss.report.comparison_figure import difference_figure, positions
from isoloss.run.ledger import Ledger

NOISE = np.random.default_rng(0).normal(size=(4, 8, 3)) * 0.02


def base(cell: dict[str, Any], replicate: int) -> float:
    """A parabola in the learning rate, higher with more symbols; noise by replicate and rate."""
    x = math.log10(cell[RATE]) + 2
    return 0.05 + 0.02 * math.log2(cell.get(VOCABULARY, 8)) + x**2 + NOISE[0, replicate, round(x) + 1]


def higher(cell: dict[str, Any], replicate: int) -> float:
    """The same and 0.3 more, with noise of its own; at the largest rate as much as at the start."""
    x = math.log10(cell[RATE]) + 2
    return 9.0 if cell[RATE] == 0.1 else base(cell, replicate) + 0.3 + NOISE[1, replicate, round(x) + 1]


def pair(folder: Path, left: Study, right: Study) -> Comparison:
    return compared(made(folder, left, base), made(folder, right, higher))


def other(**changes: Any) -> Study:
    return study(**{"name": "b", "optimizer": AdamW(learning_rate=1e-3, weight_decay=0.25), **changes})


def cell(frame: pd.DataFrame, **values: Any) -> Any:
    (row,) = [row for row in frame.to_dict("records") if all(row[path] == value for path, value in values.items())]
    return row


def test_shared_cells_are_paired_by_replicate_where_seeds_are_equal(tmp_path: Path) -> None:
    found = pair(tmp_path, study(), other())
    assert found.paired
    assert found.axes == (VOCABULARY, RATE)
    assert list(found.cells[VOCABULARY]) == [8, 8, 8, 64, 64, 64]
    assert list(found.cells[RATE]) == [*RATES, *RATES]
    row = cell(found.cells, **{VOCABULARY: 8, RATE: 1e-3})
    above = 0.3 + NOISE[1, :3, 0]
    expected = ttest_rel(above, np.zeros(3))
    assert row["difference"] == pytest.approx(above.mean(), rel=1e-12)
    assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval()), rel=1e-9)
    assert row["p"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert (row["pairs"], row["left_finished"], row["right_finished"], row["same_trials"]) == (3, 3, 3, 0)
    # Losses of 1.1 and 1.4 nats, on straight curves.
    assert row["left_outcome"] == row["right_outcome"] == "undertrained"
    last = cell(found.cells, **{VOCABULARY: 8, RATE: 0.1})
    assert (last["right_outcome"], last["changed"]) == ("diverged", True)
    # Above its initial loss a trial counts with that.
    assert last["right"] == pytest.approx(math.log(8))


def cells(losses: dict[tuple[str, int], tuple[float, ...]]) -> pd.DataFrame:
    rows = [
        {"key": f"{head}{size}{i}", HEAD: head, VOCABULARY: size, "replicate": i, "capped_excess": loss,
         "outcome": "plateaued"}
        for (head, size), of_cell in losses.items() for i, loss in enumerate(of_cell)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_shared_cells_of_two_studies_are_paired_by_replicate() -> None:
    left = {("a", 16): (1.0, 1.1, 1.3), ("a", 32): (2.0, 2.2, 2.5), ("b", 16): (3.0,), ("c", 16): (4.0, 4.1)}
    right = {("a", 16): (1.5, 1.7, 1.7), ("a", 32): (2.1, 2.2, 2.4, 9.0), ("b", 16): (2.5, 9.0), ("b", 32): (7.0, 7.5)}
    found = cells_table(cells(left), cells(right), [HEAD, VOCABULARY], paired=True)
    assert found[[HEAD, VOCABULARY, "pairs"]].to_numpy().tolist() == [["a", 16, 3], ["a", 32, 3], ["b", 16, 1]]
    tests = [ttest_rel(right["a", size][:3], left["a", size]) for size in (16, 32)]
    for row, cell, test in zip(found.to_dict("records"), (("a", 16), ("a", 32)), tests, strict=False):
        interval = test.confidence_interval(0.95)
        assert row["difference"] == pytest.approx(np.mean(right[cell][:3]) - np.mean(left[cell]))
        assert (row["left"], row["right"]) == pytest.approx((np.mean(left[cell]), np.mean(right[cell][:3])))
        assert (row["low"], row["high"], row["p"]) == pytest.approx((interval.low, interval.high, test.pvalue))
    smaller, larger = sorted(test.pvalue for test in tests)
    assert sorted(found["p_holm"].dropna()) == pytest.approx([2 * smaller, max(2 * smaller, larger)])
    assert found["difference"].iloc[2] == -0.5
    assert found[["low", "high", "p", "p_holm"]].iloc[2].isna().all()


def test_two_trials_at_one_place_are_no_pair() -> None:
    table = cells({("a", 16): (1.0, 2.0), ("a", 32): (1.0, 2.0)})
    with pytest.raises(ValueError, match="'head' do not tell all cells apart"):
        cells_table(table, table, [HEAD], paired=True)
    assert not len(cells_table(table[table[VOCABULARY] == 16], cells({("a", 64): (1.0,)}), [VOCABULARY], paired=True))


def test_other_seeds_get_welchs_interval(tmp_path: Path) -> None:
    found = pair(tmp_path, study(), other(seed=5, replicates=4))
    assert not found.paired
    row = cell(found.cells, **{VOCABULARY: 64, RATE: 1e-2})
    one = 0.05 + 0.12 + NOISE[0, :3, 1]
    two = 0.05 + 0.12 + NOISE[0, :4, 1] + 0.3 + NOISE[1, :4, 1]
    a, b = one.var(ddof=1) / 3, two.var(ddof=1) / 4
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    mean, half = two.mean() - one.mean(), t.ppf(0.975, freedom) * math.sqrt(a + b)
    assert (row["difference"], row["low"], row["high"]) == pytest.approx((mean, mean - half, mean + half), rel=1e-9)
    assert row["p"] == pytest.approx(2 * t.sf(mean / math.sqrt(a + b), freedom), rel=1e-9)
    assert (row["pairs"], row["left_finished"], row["right_finished"]) == (0, 3, 4)
    # Holm over the six cells: none is below its own p.
    assert (found.cells["p_holm"] >= found.cells["p"]).all()


def test_a_difference_needs_two_replicates_and_a_spread() -> None:
    nothing = difference({0: 1.0}, {1: 2.0}, paired=True)
    assert all(math.isnan(value) for value in nothing.values())
    one = difference({0: 1.0, 1: 5.0}, {1: 2.0}, paired=True)
    assert (one["left"], one["right"], one["difference"]) == (5.0, 2.0, -3.0)
    assert math.isnan(one["low"])
    flat = difference({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}, paired=False)
    assert flat["difference"] == 1.0
    assert math.isnan(flat["p"])


def test_sensitivity_and_best_loss_are_compared_over_the_rates_of_both(tmp_path: Path) -> None:
    found = pair(tmp_path, study(), other(axes={VOCABULARY: Choice(8, 64), RATE: Choice(1e-2, 3e-2, 1e-3)}))
    assert list(found.groups[VOCABULARY]) == [8, 64]
    row = cell(found.groups, **{VOCABULARY: 8})
    losses = [
        [[of({RATE: rate, VOCABULARY: 8}, r) for rate in (1e-3, 1e-2)] for r in range(3)] for of in (base, higher)
    ]
    spread = [[max(one) / 2 - min(one) / 2 for one in of] for of in losses]
    assert row["sensitivity_left"] == pytest.approx(np.mean(spread[0]))
    assert row["sensitivity_difference"] == pytest.approx(np.mean(spread[1]) - np.mean(spread[0]))
    interval = ttest_rel(spread[1], spread[0]).confidence_interval()
    assert (row["sensitivity_low"], row["sensitivity_high"]) == pytest.approx(tuple(interval))
    best = [[one[1] for one in of] for of in losses]  # 1e-2 is the best rate by far
    assert row["best_difference"] == pytest.approx(np.mean(best[1]) - np.mean(best[0]))
    # No other rate comes near, so that the interval is Student's alone.
    interval = ttest_rel(best[1], best[0]).confidence_interval()
    assert (row["best_low"], row["best_high"]) == pytest.approx(tuple(interval))
    assert (row["learning_rates"], row["left_best_rate"], row["right_best_rate"]) == (2, 1e-2, 1e-2)


def test_an_unsure_best_rate_makes_the_interval_longer() -> None:
    loss = pd.DataFrame({1e-3: [1.0, 1.2, 1.1], 1e-2: [1.3, 0.9, 1.15]})
    # Medians 1.1 and 1.15; the second rate ends lower by -0.3, 0.3, -0.05.
    error = np.std([-0.3, 0.3, -0.05], ddof=1) / math.sqrt(3)
    assert regret(loss) == pytest.approx(-0.05 / 3 + t.ppf(0.8, 2) * error)
    assert regret(loss.add([0.0, 5.0])) == 0
    assert regret(loss.head(1)) == 0


def test_an_axis_that_one_study_holds_fixed_is_matched_at_its_value(tmp_path: Path) -> None:
    ranks = study(axes={RANK: Choice(2, 4), RATE: Choice(*RATES)})
    found = pair(tmp_path, ranks, other(axes={VOCABULARY: Choice(8, 64), RATE: Choice(*RATES)}))
    assert found.axes == (RANK, RATE, VOCABULARY)
    assert set(zip(found.cells[RANK], found.cells[VOCABULARY], strict=True)) == {(2, 8)}
    assert len(found.cells) == 3


def test_a_study_without_the_field_stands_beside_every_value(tmp_path: Path) -> None:
    ranks = study(axes={RANK: Choice(4, 2), RATE: Choice(*RATES)})
    found = pair(tmp_path, ranks, other(head=Linear(), axes={RATE: Choice(*RATES)}))
    assert [*zip(found.cells[RANK], found.cells[RATE], strict=True)] == [(r, rate) for r in (2, 4) for rate in RATES]
    heads = study(name="heads", axes={HEAD: Choice(Linear(), LowRank(rank=2)), RATE: Choice(*RATES)})
    found = pair(tmp_path, heads, other(name="c", axes={RANK: Choice(2, 4), RATE: Choice(*RATES)}))
    assert {tuple(one) for one in found.cells[[HEAD, RANK]].to_numpy()} == {("low_rank(2)", 2)}


def test_what_definitions_differ_in_is_told_by_path() -> None:
    found = differing(study(), other(head=Linear(), axes={RATE: Choice(*RATES)}, question="?"))
    texts = {row["path"]: (row["left"], row["right"]) for row in found.to_dict("records")}
    # A default of a kind of head that the other study does not have is a difference, too.
    assert texts.pop("head.tied") == ("–", "False")
    assert {path: both for path, both in texts.items() if path.partition(".")[0] != "head"} == {
        "optimizer.weight_decay": ("0", "0.25"),
        f"axes.{VOCABULARY}": ("8, 64", "–"),
    }
    assert texts["head.rank"] == ("2", "–")
    assert texts["head.kind"] == ("low_rank", "linear")
    finer = differing(study(axes={RATE: Log(1e-3, 1e-1, points=3)}), study(axes={RATE: Log(1e-3, 1e-1, points=5)}))
    assert finer.to_dict("records") == [
        {"path": f"axes.{RATE}", "left": "log 0.001 to 0.1, 3 points", "right": "log 0.001 to 0.1, 5 points"}
    ]
    assert not len(differing(study(), study(name="b")))


# --- bands


def bands(low: float, high: float, spread: float, **changes: Any) -> pd.DataFrame:
    z = norm.ppf(0.95)
    ends = {"lowest": low, "highest": high}
    row: dict[str, Any] = {VOCABULARY: 64, "level": 0.5, "closed": 0.0, "islands": 0.0}
    for name, middle in ends.items():
        row |= {
            name: 10**middle,
            f"{name}_from": 10 ** (middle - z * spread),
            f"{name}_to": 10 ** (middle + z * spread),
        }
        row |= {f"{name}_bound": 0.0, f"{name}_is_bound": False, f"{name}_fringe": 0.1}
    return pd.DataFrame([{**row, **changes}])


def test_normal_ends_differ_by_a_normal() -> None:
    found = compare_bands.differences(bands(-3, -1, 0.1), bands(-2.5, -1.2, 0.2), (VOCABULARY,))
    row = found.iloc[0]
    assert row["lowest_difference"] == pytest.approx(0.5)
    assert row["highest_difference"] == pytest.approx(-0.2)
    interval = norm.interval(0.9, 0.5, math.hypot(0.1, 0.2))
    assert (row["lowest_from"], row["lowest_to"]) == pytest.approx(interval)


def test_skewed_ends_keep_their_skew() -> None:
    left = bands(-3, -1, 0.0, highest_from=10**-1.4)  # it may well lie lower
    row = compare_bands.differences(left, bands(-3, -1, 0.0), (VOCABULARY,)).iloc[0]
    assert (row["highest_from"], row["highest_to"]) == pytest.approx((0.0, 0.4))


def test_bounds_and_closed_bands_are_told() -> None:
    left, right = bands(-3, -1, 0.1, highest_is_bound=True), bands(math.nan, math.nan, 0.1, closed=0.9)
    row = compare_bands.differences(left, right, (VOCABULARY,)).iloc[0]
    assert math.isnan(row["lowest_difference"])
    assert (row["highest_is_bound"], row["lowest_is_bound"], row["right_closed"]) == (True, False, 0.9)
    elsewhere = bands(-3, -1, 0.1).assign(**{VOCABULARY: 65})
    assert not len(compare_bands.differences(left, elsewhere, (VOCABULARY,)))


# --- the command


def test_the_command_prints_and_writes_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pair(tmp_path / ".isoloss", study(question="Is <b> safe?"), other())
    code, out, err = call(capsys, monkeypatch, "compare", "a", "b", "--out", "out")
    said = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "b less a: 6 shared cells, of 18 finished trials of a and 18 of b" in said
    assert "both studies draw from seed 0" in said
    assert "optimizer.weight_decay 0 0.25" in said
    assert "2 of 6 cells change outcome" in said
    assert "+0.3" in said
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(written) == {"compare.html", "compare.json", "differing.parquet", "cells.parquet", "groups.parquet"}
    html = written["compare.html"].decode()
    assert "Is &lt;b&gt; safe?" in html
    assert "Differences of excess loss" in html
    assert len(pd.read_parquet(tmp_path / "out" / "cells.parquet")) == 6
    code, out, _ = call(capsys, monkeypatch, "compare", "a", "b", "--out", "out", "--json")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == written
    facts = json.loads(out)
    assert (facts["left"], facts["right"], facts["paired"], facts["finished"]) == ("a", "b", True, [18, 18])
    assert len(facts["cells"]) == 6
    assert facts["cells"][0]["difference"] == pytest.approx(0.3, abs=0.1)
    assert facts["files"] == [f"out/{name}" for name in ("compare.html", "differing.parquet", "cells.parquet",
                                                         "groups.parquet", "compare.json")]  # fmt: skip


def test_studies_that_cannot_be_compared_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = tmp_path / ".isoloss"
    made(state, study(axes={RANK: Choice(2, 4)}), lambda cell, replicate: 1.0)
    made(state, other(axes={RATE: Choice(*RATES)}), lambda cell, replicate: 1.0)
    sizes = (Size(vocab_size=300, tokens=10**5, held_out_tokens=10**5),)
    card = Prepared(name="t", digest="0123456789abcdef", bytes=10**6, held_out_documents=999, sizes=sizes)
    text = other(name="text", task=Text(data=card, vocab_size=300, sequence_length=8), axes={RATE: Choice(*RATES)})
    made(state, text, lambda cell, replicate: 1.0, most=0)
    for names, exit_code, said in (
        (("a", "b"), 2, f"a varies {RANK} and b varies {RATE}: they have no axis in common"),
        (("b", "text"), 2, "b measures its loss in nats per scored token and text in bits per byte"),
        (("a", "c"), 3, "no study 'c'"),
    ):
        code, _, err = call(capsys, monkeypatch, "compare", *names)
        assert (code, said in err, err.count("\n")) == (exit_code, True, 1), err


def test_studies_without_a_shared_finished_cell_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / ".isoloss", study(), base)
    made(tmp_path / ".isoloss", other(), base, most=0)
    code, out, _ = call(capsys, monkeypatch, "compare", "a", "b", "--out", "out")
    assert code == 0
    assert "No cell is finished in both studies: no losses" in " ".join(out.split())
    assert "No cell is finished in both" in (tmp_path / "out" / "compare.html").read_text()


def test_a_study_compared_with_itself_differs_in_nothing(tmp_path: Path) -> None:
    of: tuple[Study, Ledger] = made(tmp_path, study(), base)
    found = compared(of, of)
    assert (found.cells["difference"] == 0).all()
    assert found.cells["p"].isna().all()
    assert not found.cells["changed"].any()
    assert found.cells["same_trials"].sum() == 18
    assert not len(found.differing)


def test_the_map_places_cells_by_the_logarithm_and_centres_its_colours(tmp_path: Path) -> None:
    assert positions([1e-3, 1e-2, 1.0]) == pytest.approx([-3, -2, 0])
    assert positions([2, 4, 6]) == [2, 4, 6]
    assert positions(["linear()", "low_rank(2)"]) == [0, 1]
    figure = difference_figure(pair(tmp_path, study(), other())).to_plotly_json()
    colours = figure["layout"]["coloraxis"]
    assert colours["cmin"] == -colours["cmax"] < 0
    # Four of six differ by about 0.3, which one cell that diverged must not hide.
    assert colours["cmax"] == pytest.approx(0.9, abs=0.1)
    (trace,) = figure["data"]
    assert np.shape(trace["z"]) == (2, 3)
    assert trace["z"][0][0] == pytest.approx(0.3 + NOISE[1, :3, 0].mean())
