"""What a report says of a boundary search: its figure, picture, page, words, status, plan, and what MLflow is told."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from test_analysis_boundary import EDGES, RATE, RATES, VOCABULARY, finish, ledger, study
from test_report_write import Scripts

from isoloss import Boundary, Choice, Grid, Linear, Log, LowRank, Optuna, Study
from isoloss.analysis.boundary import LEVELS, Findings, course, findings
from isoloss.analysis.surface import waiting_table
from isoloss.analysis.table import trials_table
from isoloss.report import boundary_words
from isoloss.report.boundary_drawing import Drawing, drawing
from isoloss.report.boundary_figure import boundary_figure, volume_ticks
from isoloss.report.boundary_picture import boundary_picture
from isoloss.report.plan import plan_of
from isoloss.report.status import status_of, status_text
from isoloss.report.terminal import terminal_map
from isoloss.report.write import Written, write_report
from isoloss.run.book import Book
from isoloss.run.ledger import Ledger
from isoloss.search.boundary.map import BoundaryMap
from isoloss.search.plan import plan
from isoloss.track.boundary import boundary_fields


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return ledger(tmp_path_factory.mktemp("ledger"), study())


@pytest.fixture(scope="module")
def found(made: Ledger) -> Findings:
    result = findings(study(), made)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def drawn(made: Ledger, found: Findings) -> Drawing:
    return drawing(study(), found, trials_table(study(), made), waiting_table(study(), made))


@pytest.fixture(scope="module")
def written(made: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_report(study(), made, tmp_path_factory.mktemp("report"))


# --- the figure


def test_the_map_is_the_chance_at_each_place(drawn: Drawing, found: Findings) -> None:
    (panel,) = drawn.panels
    # Every listed V is a place down; across, places are even in the logarithm.
    down = {round(float(place), 6): i for i, place in enumerate(drawn.down_Y)}
    across = 70
    for row, vocabulary in enumerate(EDGES):
        point = {RATE: float(drawn.across_X[across]), VOCABULARY: vocabulary}
        expected = found.known.chance(found.known.space.encode([point]))[0]
        assert panel.chance_YX[down[row], across] == pytest.approx(expected)
    assert drawn.across_X[across] == pytest.approx(1e-2)


def test_the_solid_line_passes_where_half_of_the_seeds_converge(drawn: Drawing, found: Findings) -> None:
    (panel,) = drawn.panels
    rows = list(EDGES)
    solid = {line.end: line for line in panel.lines if line.level == 0.5}
    for end, vocabulary in (("lowest", 64), ("lowest", 256), ("highest", 64), ("highest", 256)):
        line = solid[end]
        i = line.down.index(float(rows.index(vocabulary)))
        rates = np.geomspace(line.low[i] / 1.05, line.high[i] * 1.05, 201)
        chance = found.known.chance(found.known.space.encode([{RATE: r, VOCABULARY: vocabulary} for r in rates]))
        crossing = rates[np.argmin(np.abs(chance - 0.5))]
        assert abs(math.log10(line.across[i] / crossing)) < 0.06
    assert [place for place, _ in panel.closed] == [rows.index(1024)]
    assert max(line.down[-1] for line in panel.lines) < rows.index(1024)


def test_every_trial_is_a_dot_and_the_even_start_is_told(drawn: Drawing) -> None:
    figure = boundary_figure(drawn).to_plotly_json()
    markers = [t for t in figure["data"] if t.get("mode") == "markers" and "hovertext" in t]
    diamonds = [t for t in markers if t["marker"]["symbol"] == "diamond"]
    assert sum(len(t["x"]) for t in diamonds) == 8  # 2 an axis, and 4
    dots = [t for t in markers if t["xaxis"] == "x"]
    assert sum(len(t["x"]) for t in dots) == 64
    assert {t["marker"]["symbol"] for t in dots} == {"circle", "star", "square"}
    assert any("trial 1 of 64 (even start)" in text for t in dots for text in t["hovertext"])
    bounds = [t for t in markers if "triangle-up-open" in t["marker"]["symbol"]]
    assert bounds
    assert any("only a bound" in text for t in bounds for text in t["hovertext"])
    texts = [a["text"] for a in figure["layout"]["annotations"]]
    assert any(text.startswith("closed (") for text in texts)
    assert "tolerance 0.03" in texts


def test_volumes_are_labelled_at_one_two_and_five() -> None:
    assert volume_ticks((-2.05, -0.9)) == [0.01, 0.02, 0.05, 0.1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "panels", "kinds"),
    [
        ({RATE: Log(1e-4, 1.0)}, 1, 4),
        ({RATE: Log(1e-4, 1.0), "head": Choice(Linear(), LowRank(rank=8))}, 1, 4),
        ({RATE: Log(1e-4, 1.0), VOCABULARY: Log(16, 1024), "optimizer.weight_decay": Choice(0.0, 0.1)}, 2, 6),
        ({RATE: Choice(1e-3, 1e-2, 1e-1), VOCABULARY: Choice(16, 64)}, 1, 4),
        ({VOCABULARY: Choice(16, 64), "model.width": Choice(16, 32)}, 1, 3),
    ],
)
def test_axes_of_every_kind_are_drawn(tmp_path: Path, axes: dict[str, Any], panels: int, kinds: int) -> None:
    of = study(axes=axes, search=Boundary(trials=12))
    made = Ledger(tmp_path)
    made.open(of, {"device": "cpu"})
    listed = {
        path: of.listed(path) or [of.cell({path: axes[path].at(x)})[path] for x in (0.1, 0.5, 0.9)] for path in axes
    }
    for number in range(6):
        cell = {
            path: values[(number + i * (number // 2)) % len(values)] for i, (path, values) in enumerate(listed.items())
        }
        if number % 3 != len(listed) % 3 or number == 0:
            finish(made, of, number, cell, number % 2, 0.001 if number % 2 else math.nan)
    found = findings(of, made)
    assert found is not None
    drawn = drawing(of, found, trials_table(of, made), waiting_table(of, made))
    assert len(drawn.panels) == panels
    titles = [
        a for a in boundary_figure(drawn).to_plotly_json()["layout"]["annotations"] if a["text"].startswith("<b>")
    ]
    assert len(titles) == kinds
    image = matplotlib.image.imread(io.BytesIO(boundary_picture(drawn)))
    assert image.shape[1] == 1536


# --- files


@pytest.mark.slow
def test_the_files_of_a_boundary(written: Written, made: Ledger, found: Findings, tmp_path: Path) -> None:
    names = {path.name for path in written.files}
    assert names >= {"report.html", "boundary.png", "boundary.parquet", "surface.png", "trials.parquet"}
    assert not {"sensitivity.csv", "sensitivity.parquet"} & names
    assert names == {path.name for path in written.surface_png.parent.iterdir()}
    assert written.boundary is not None
    assert found.table is not None
    pd.testing.assert_frame_equal(pd.read_parquet(written.boundary), found.table, check_dtype=False)
    text = written.report_html.read_text()
    assert "64 of 64 trials finished" in text
    assert "Inferred from these 64 trials by two Gaussian processes" in text
    assert "vocab size 1,024: closed (probability" in text
    assert text.count('<script type="text/plain" id="plotly">') == 1
    for data in Scripts(text).scripts[:3]:
        assert set(json.loads(data)) == {"data", "layout"}
    again = write_report(study(), made, tmp_path)
    assert [path.read_bytes() for path in again.files] == [path.read_bytes() for path in written.files]


@pytest.mark.slow
def test_a_stale_boundary_does_not_outlive_its_search(tmp_path: Path) -> None:
    of = study()
    assert write_report(of, ledger(tmp_path / "one", of, 12), tmp_path / "report").boundary is not None
    grid = study(axes={RATE: Log(1e-4, 1.0, points=3)}, search=Grid())
    other = Ledger(tmp_path / "two")
    other.open(grid, {"device": "cpu"})
    finish(other, grid, 0, {RATE: 1e-2}, 0, 0.001)
    done = write_report(grid, other, tmp_path / "report")
    assert done.boundary is None
    assert done.findings is None
    assert not list((tmp_path / "report").glob("boundary.*"))


def test_before_the_first_result_there_is_no_boundary(tmp_path: Path) -> None:
    done = write_report(study(), ledger(tmp_path / "ledger", study(), 0), tmp_path / "report")
    assert done.boundary_png is None


# --- words


def band_row(level: float, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"level": level, "closed": 0.0, "islands": 0.0}
    for end, value in (("lowest", 1.5e-3), ("highest", 2e-1)):
        row |= {end: value, f"{end}_from": 0.8 * value, f"{end}_to": 1.2 * value, f"{end}_bound": 0.0}
        row |= {f"{end}_is_bound": False, f"{end}_fringe": 0.21}
    return {**row, **changes}


def test_a_band_in_words() -> None:
    rows = {0.5: band_row(0.5), 0.9: band_row(0.9, lowest=1.8e-3, highest=1.3e-1)}
    assert "; ".join(boundary_words.phrases(rows)) == (
        "converges from 1.5e-3 (1.2e-3 to 1.8e-3) to 2e-1 (1.6e-1 to 2.4e-1) in the median seed; "
        "from 1.8e-3 to 1.3e-1 in 90% of seeds; fringe 0.21 decades"
    )


def test_what_limits_a_band_in_words() -> None:
    nan = dict.fromkeys(("lowest", "highest"), math.nan)
    closed = {level: band_row(level, closed=0.97, **nan) for level in LEVELS}
    assert boundary_words.phrases(closed) == ["closed (probability 0.97)"]
    bound = {0.5: band_row(0.5, highest_is_bound=True, islands=0.4), 0.9: band_row(0.9, closed=0.8, **nan)}
    assert boundary_words.phrases(bound)[1:] == [
        "upper end only a bound: the band runs into the end of the range",
        "more than one stretch (probability 0.40)",
        "nowhere in 90% of seeds (probability 0.80)",
    ]
    both = {level: band_row(level, highest_is_bound=True, lowest_is_bound=True) for level in LEVELS}
    said = boundary_words.phrases(both)
    assert "both ends only bounds: the band runs into the ends of the range" in said
    assert not any("fringe" in text for text in said)


def test_many_rows_are_cut(found: Findings) -> None:
    assert found.table is not None
    lines = boundary_words.band_lines(study(), found.table, most=2)
    assert len(lines) == 3
    assert lines[0].startswith("vocab size 16: converges from ")
    assert "upper end only a bound" in lines[0]
    assert lines[-1] == "… and 2 more; boundary.parquet holds all."


def test_the_terminal_tells_bands_and_no_sensitivity(made: Ledger, found: Findings) -> None:
    from rich.console import Console

    for encoding in ("utf-8", "ascii"):
        sink = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        terminal_map(study(), trials_table(study(), made), Console(file=sink, width=100), None, found)
        sink.seek(0)
        text = " ".join(sink.read().split())
        assert "vocab size 64: converges from " in text
        assert "in the median seed; from " in text
        assert "vocab size 1,024: closed (probability " in text
        assert "of the space is expected to be on the wrong side" in text
        assert "sensitivity" not in text


# --- status, plan, MLflow


def test_status_tells_what_the_driver_recorded_without_a_fit(
    made: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose = study(search=Boundary(trials=100, tolerance=0.3, width=3.0))
    fitted = {check.trials: check.error_volume for check in course(loose, made).checks}
    Book(loose, plan(loose), made).settle()

    def no_fit(*args: Any) -> None:
        raise AssertionError("status fitted a map")

    monkeypatch.setattr(BoundaryMap, "__init__", no_fit)
    facts = json.loads(json.dumps(status_of(loose, made)))
    assert (facts["trials"], facts["finished"], facts["boundary"]["most"]) == (64, 64, 100)
    assert facts["boundary"]["reason"] == "known"
    volumes = facts["boundary"]["misclassified_volume"]
    assert list(volumes) == ["56", "60", "64"]
    assert {56: volumes["56"], 64: volumes["64"]} == pytest.approx({n: fitted[n] for n in (56, 64)})
    assert facts["boundary"]["volume_in_words"].endswith(" at 64 trials; aims at 0.3")

    other = study(search=Boundary(trials=100, tolerance=0.2, width=3.0))  # of which nothing was recorded
    assert status_of(other, made)["boundary"]["reason"] is None
    some = ledger(tmp_path, study(), 10)
    facts = status_of(study(), some)
    assert facts["trials"] == 64
    assert facts["boundary"]["reason"] is None
    assert facts["boundary"]["volume_in_words"] == "not known yet; aims at 0.03"
    from rich.console import Console

    sink = io.StringIO()
    Console(file=sink, width=200).print(status_text(facts))
    assert "edges: 10/64 trials, idle" in sink.getvalue()
    assert "not decided yet: 10 of at most 64 trials are finished" in sink.getvalue()


def test_status_loads_nothing_that_takes_seconds() -> None:
    code = "import sys, isoloss.report.status; print([m for m in ('optuna', 'scipy', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_plan_counts_at_most_so_many_trials(made: Ledger, tmp_path: Path) -> None:
    facts = plan_of(study(search=Boundary(trials=100)), made, "cpu", 2)
    assert (facts["trials"], facts["at_most"], facts["finished"]) == (100, True, 64)
    assert sum(group["trials"] for group in facts["groups"]) == 100
    # Four values of each axis have sixteen cells, each at most twice.
    small = study(axes={RATE: Choice(*RATES[:4]), VOCABULARY: Choice(*EDGES)}, search=Boundary(trials=100))
    facts = plan_of(small, Ledger(tmp_path), "cpu", 2)
    assert (facts["trials"], facts["cells"]) == (32, 16)
    assert facts["tokens"] == 32 * 100 * 8 * small.trial(next(iter(_cells(small))), 0).tokens(100) // (100 * 8)


def _cells(of: Study) -> Any:
    return of.model_copy(update={"search": Grid()}).cells()


def test_a_plan_counts_what_optuna_chose(made: Ledger) -> None:
    facts = plan_of(study(search=Optuna(sampler="RandomSampler", cells=40)), made, "cpu", 2)
    assert (facts["trials"], facts["at_most"], facts["finished"]) == (80, False, 64)


def test_mlflow_is_told_few_and_finite_numbers(made: Ledger, found: Findings, tmp_path: Path) -> None:
    of = study(search=Boundary(trials=64, tolerance=0.3, width=3.0))
    metrics, tags = boundary_fields(of, made)
    assert metrics == {"boundary/trials": 64.0, "boundary/error_volume": found.known.error_volume}
    assert tags == {"isoloss.boundary": "known"}
    empty = ledger(tmp_path, of, 0)
    assert boundary_fields(of, empty) == ({"boundary/trials": 0.0}, {"isoloss.boundary": "running"})
    grid = study(axes={RATE: Log(1e-4, 1.0, points=3)}, search=Grid())
    assert boundary_fields(grid, empty) == ({}, {})


@pytest.mark.slow
def test_mlflow_holds_the_boundary_on_the_studys_run(made: Ledger, written: Written, tmp_path: Path) -> None:
    from test_track_example import database, history

    from isoloss.track.client import connect
    from isoloss.track.publish import publish

    uri = database(tmp_path)
    for _ in range(2):
        done = publish(study(), made, uri, written.surface_png.parent)
    run = connect(uri).get_run(done.run_id)
    assert run.data.metrics["boundary/trials"] == 64
    assert 0 < run.data.metrics["boundary/error_volume"] < 0.5
    assert run.data.tags["isoloss.boundary"] in ("known", "limited by noise", "spent")
    # Publishing twice leaves one point.
    assert [name for name, *_ in history(uri, done.run_id) if name.startswith("boundary/")] == [
        *("boundary/error_volume", "boundary/trials"),
    ]
    names = {artifact.path for artifact in connect(uri).list_artifacts(done.run_id)}
    assert names >= {"report.html", "boundary.png", "boundary.parquet"}
