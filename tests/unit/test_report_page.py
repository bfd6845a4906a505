"""What the report's page holds: sections and headings in order, an answer, curves with their spikes, provenance."""

from __future__ import annotations

import html
import html.parser
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from test_report_example import ledger, study
from test_report_write import Scripts

from isoloss import Choice, Curve, Linear, Log, LowRank, Study
from isoloss.analysis.measures import MEASURES, measure_tables
from isoloss.analysis.table import trials_table
from isoloss.report.answer import answer
from isoloss.report.curves import DASHES, MOST_CURVES, START, curves_figures
from isoloss.report.page import Section, page
from isoloss.report.provenance import Ran, command
from isoloss.report.thinning import MOST_POINTS, thinned
from isoloss.report.write import write_report
from isoloss.run.ledger import Ledger
from isoloss.study_file import load_study


class Outline(html.parser.HTMLParser):
    """The headings, landmarks and links of a page, and what every table and figure is called."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.landmarks: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tables = self.captions = self.pictures = self.scrolls = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.landmarks += [tag] if tag in ("header", "nav", "main") else []
        self.links += [str(found["href"])] if tag == "a" else []
        self.ids += [str(found["id"])] if "id" in found else []
        self.tables += tag == "table"
        self.captions += tag == "caption"
        self.pictures += found.get("role") == "img" and bool(found.get("aria-label"))
        self.scrolls += "scroll" in str(found.get("class")) and found.get("tabindex") == "0"


@pytest.fixture(scope="module")
def of() -> Study:
    return study(axes={"head": Choice(Linear(), LowRank(rank=8)), "optimizer.learning_rate": Log(1e-4, 1e-1, points=4)})


@pytest.fixture(scope="module")
def made(of: Study, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = ledger(tmp_path_factory.mktemp("ledger"), of, lambda number, trial: number != 3)
    lost = next(claim.key for claim in made.claims() if not made.is_finished(claim.key))
    made.give_up(lost, "out_of_memory", "rank 0 was killed")
    return made


@pytest.fixture(scope="module")
def text(of: Study, made: Ledger, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(of, made, tmp_path_factory.mktemp("report")).report_html.read_text()


def test_sections_follow_each_other_under_headings_in_order(text: str) -> None:
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", text)
    measured = [measure.title for measure in MEASURES if f'<h2 id="{Section(measure.title, []).anchor}"' in text]
    assert titles == [
        *("Answer", "Map", "Learning curves"), *measured,
        *("What is inferred, and what is missing", "Settings, cost and provenance"),
    ]  # fmt: skip
    assert {"Learning-rate sensitivity", "Paired comparisons"} <= set(measured)
    found = Outline(text)
    assert found.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(found.headings, found.headings[1:], strict=False))


def test_the_page_can_be_read_without_eyes_or_mouse(text: str) -> None:
    found = Outline(text)
    assert found.landmarks == ["header", "nav", "main"]
    assert found.links[0] == "#main"
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    assert found.tables == found.captions > 3
    assert found.pictures == len(Scripts(text).scripts) - 2 >= 2
    assert found.scrolls == found.tables + found.pictures
    assert '<html lang="en">' in text


def test_every_measure_is_defined_beside_its_table(of: Study, made: Ledger, text: str) -> None:
    tables = measure_tables(of, trials_table(of, made), made.result)
    assert len({measure.name for measure in MEASURES}) == len(MEASURES)
    for measure in MEASURES:
        assert len(measure.definition) > 100
        assert (html.escape(measure.definition) in text) == (measure.name in tables)


def test_what_is_missing_is_told(text: str) -> None:
    assert "1 trial has been given up (out of memory: rank 0 was killed); the next run tries again." in text
    assert "1 of 8 cells have fewer than 2 finished replicates." in text
    assert "Power laws: the study&#x27;s axes, or its finished trials, allow no number." in text


def test_the_page_is_enough_to_run_the_study_again(of: Study, text: str, tmp_path: Path) -> None:
    listed = re.search(r"<summary>The study as JSON</summary><pre>(.*?)</pre>", text, re.DOTALL)
    again = re.search(r"<h3>To run it again</h3>.*?<pre>(.*?)</pre>", text, re.DOTALL)
    assert listed is not None
    assert again is not None
    lines, _, asked = html.unescape(again[1]).rpartition("\n\n")
    (tmp_path / "study.json").write_text(html.unescape(listed[1]))
    (tmp_path / "study.py").write_text(lines)
    assert load_study(str(tmp_path / "study.py")) == of
    assert asked == "isoloss run study.py --device cpu"


def test_costs_are_those_of_the_steps_that_were_trained(of: Study) -> None:
    _, trial = next(of.trials())
    curve = Curve((0, 10), (4.0, 3.0), (0.1, 0.1), 0.0, "above_initial")
    ran = Ran(trial, curve, {"device": "cuda", "dtype": "bfloat16", "compile": True, "threads": 2, "workers": 4})
    # 10 updates of 32 sequences with 7 scored positions; and 2 evaluations of 256 such, at a third of the cost.
    tokens, measured = 10 * 32 * 7, 2 * 256 * 7
    assert ran.flops == pytest.approx(trial.flops_per_token * (tokens + measured / 3))
    assert command([ran]) == (
        "isoloss run study.py --device cuda --dtype bfloat16 --threads 2 --workers-per-slot 4 --compile"
    )


# --- the answer


def test_the_answer_names_the_lowest_cell_with_its_range(of: Study) -> None:
    cells = pd.DataFrame({
        "head": ["linear()", "low_rank(8)"], "optimizer.learning_rate": [1e-3, 1e-2], "finished": [2, 2],
        "median_excess": [0.5, 0.25], "lowest_excess": [0.4, 0.2], "highest_excess": [0.6, 0.3],
    })  # fmt: skip
    assert answer(of, cells, {}, None) == [
        "The lowest excess loss of a cell is 0.250 (0.200 to 0.300) nats (median and range of 2 replicates), at head "
        "low_rank(8), learning rate 1e-2."
    ]


def test_many_comparisons_are_told_by_what_is_sure(of: Study) -> None:
    cells = pd.DataFrame({
        "head": ["linear()"], "optimizer.learning_rate": [1e-3], "finished": [1],
        "median_excess": [0.5], "lowest_excess": [0.5], "highest_excess": [0.5],
    })  # fmt: skip
    rows = [
        {"arm": f"arm {i}", "reference": "linear()", "difference": d, "low": d - 0.1, "high": d + 0.1, "p_holm": p}
        for i, (d, p) in enumerate([(0.5, 0.01), (1.5, 0.001), (-0.25, 0.04), (0.1, 0.5), (0.1, math.nan)] * 2)
    ]
    said = answer(of, cells, {"paired": pd.DataFrame(rows)}, None)[1:]
    assert said == [
        "Higher excess loss than linear() (p below 0.05 after Holm, nats): arm 1 +1.50 (1.40 to 1.60), arm 6 +1.50 "
        "(1.40 to 1.60), arm 0 +0.500 (0.400 to 0.600), arm 5 +0.500 (0.400 to 0.600).",
        "Lower excess loss than linear() (p below 0.05 after Holm, nats): arm 2 -0.250 (-0.350 to -0.150), arm 7 "
        "-0.250 (-0.350 to -0.150).",
        "Not told apart from it: 4 of 10 comparisons.",
    ]


# --- curves


def test_thinning_keeps_ends_and_every_spike() -> None:
    step = np.arange(0, 200_000, 1000)
    loss = 4.0 / (1 + step / 500)
    loss[[40, 150]] = 9.0, 0.001
    curve = Curve(tuple(step.tolist()), tuple(loss.tolist()), (0.0,) * len(step), 0.0)
    kept = thinned(curve)
    assert len(kept) <= MOST_POINTS
    assert {0, 40, 150, len(step) - 1} <= set(kept)
    assert kept == sorted(set(kept))
    assert thinned(Curve((0, 1, 2), (3.0, 2.0, 1.0), (0.0,) * 3, 0.0)) == [0, 1, 2]


def test_thinned_points_are_even_in_the_logarithm() -> None:
    step = np.unique(np.concatenate([[0], np.geomspace(1, 1e6, 2000).astype(int)]))
    curve = Curve(tuple(step.tolist()), tuple((5 / (1 + step**0.5)).tolist()), (0.0,) * len(step), 0.0)
    kept = step[thinned(curve)][1:]
    decades = [int(((kept >= 10**i) & (kept < 10 ** (i + 1))).sum()) for i in range(6)]
    assert max(decades) - min(decades) <= 4


def test_curves_are_told_apart_without_colour(of: Study, made: Ledger) -> None:
    trials = trials_table(of, made)
    curves = {key: made.result(key).curve for key in trials["key"]}
    (figure,) = curves_figures(of, trials, curves)
    go.Figure(figure)  # raises ValueError where plotly does not know a field
    assert len(figure["data"]) == len(trials) < MOST_CURVES
    rates = {trace["legendgroup"]: (trace["line"]["dash"], trace["line"]["color"]) for trace in figure["data"]}
    assert list(rates) == ["1e-4", "1e-3", "1e-2", "1e-1"]
    assert [dash for dash, _ in rates.values()] == list(DASHES[:4])
    assert len({colour for _, colour in rates.values()}) == 4
    first = figure["data"][0]
    assert first["x"][0] == START
    assert round(START) == 0  # the hover text rounds it
    curve = curves[trials.iloc[0]["key"]]
    assert first["y"][-1] == pytest.approx(curve.final_excess, rel=1e-3)
    axes = [axis for name, axis in figure["layout"].items() if name.startswith(("xaxis", "yaxis"))]
    assert {axis["type"] for axis in axes} == {"log"}
    assert {axis["title"]["text"] for axis in axes} == {"step (updates)", "excess loss (nats)", ""}


def test_a_page_without_figures_has_no_script() -> None:
    text = page("a", "b <", "c", [Section("One & two", ["<p>body</p>"])])
    assert Scripts(text).scripts == []
    assert '<h2 id="one-two">One &amp; two</h2>' in text
    assert json.dumps("b <")[1:-1] not in text


def test_the_machine_changes_provenance_alone(of: Study, made: Ledger, text: str, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "other")
    other.open(of, {"device": "cpu"})
    for claim in made.claims():
        other.claim(claim.number, claim.key, of.cell(claim.cell), claim.replicate)
        if made.is_finished(claim.key):
            result = made.result(claim.key)
            result.machine["hardware"] = "another"
            other.finish(result)
        else:
            other.give_up(claim.key, "out_of_memory", "rank 0 was killed")
    again = write_report(of, other, tmp_path / "report").report_html.read_text()
    assert again != text
    before, after = (re.sub("(?s)<h3>Hardware</h3>.*?</table>", "", one) for one in (text, again))
    assert before == after
