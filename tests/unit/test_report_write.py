"""The written report: complete, the same to the byte, and safe whatever a study's texts say."""

from __future__ import annotations

import gzip
import html.parser
import io
import json
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest
from plotly.offline import get_plotlyjs_version
from test_report_example import HOSTILE, finish, ledger, study

from isoloss import Choice, Decoder, Linear, Log, LowRank, Random, Span
from isoloss.analysis.table import trials_table
from isoloss.report import page, write
from isoloss.report.write import parquet, write_report
from isoloss.run.ledger import Ledger


class Scripts(html.parser.HTMLParser):
    """The scripts of a page and its images, as a browser's parser cuts them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.kinds: list[str | None] = []
        self.tags: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag == "script"
        if self._inside:
            self.kinds.append(dict(attrs).get("type"))
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def test_all_files(tmp_path: Path) -> None:
    of = study()
    made = ledger(tmp_path / "ledger", of)
    written = write_report(of, made, tmp_path / "report")
    assert {path.name for path in written.files} == {path.name for path in (tmp_path / "report").iterdir()}
    assert {path.name for path in written.files} == {
        *("report.html", "surface.png", "trials.parquet", "surface.parquet", "sensitivity.csv"),
        *(f"{name}.parquet" for name in written.tables),
    }
    assert {"sensitivity", "tokens_to_loss"} <= set(written.tables)
    pd.testing.assert_frame_equal(pd.read_parquet(written.trials), trials_table(of, made), check_dtype=False)
    assert len(pd.read_parquet(written.surface)) == 42
    for name, table in written.tables.items():
        assert len(pd.read_parquet(written.measures[name])) == len(table) > 0
    assert len(written.tables["sensitivity"]) == 6
    assert matplotlib.image.imread(written.surface_png).shape[1] > 1000
    assert written.report_html.stat().st_size < 1_000_000


def test_the_same_results_give_the_same_bytes_whatever_their_order(tmp_path: Path) -> None:
    of = study(axes={"task.vocab_size": Choice(64, 1024), "optimizer.learning_rate": Log(1e-4, 1e-1, points=4)})
    first = write_report(of, ledger(tmp_path / "ledger", of), tmp_path / "report")
    other = Ledger(tmp_path / "other")
    other.open(of, {"device": "cpu"})
    for number, (cell, trial) in enumerate(reversed(list(of.trials()))):
        other.claim(number, trial.key, cell, trial.replicate)
        finish(other, trial)
    second = write_report(of, other, tmp_path / "second")
    assert [path.read_bytes() for path in first.files] == [path.read_bytes() for path in second.files]


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    of = study(
        question=HOSTILE,
        axes={"optimizer.learning_rate": Log(1e-4, 1e-1, points=3), "head": Choice(Linear(), LowRank(rank=8))},
    )
    written = write_report(of, ledger(tmp_path / "ledger", of), tmp_path / "report")
    text = written.report_html.read_text()
    found = Scripts(text)
    assert found.kinds == ["application/json", "application/json", "text/plain", None]
    assert "alert(1)" not in "".join(found.scripts)
    assert "http" not in found.scripts[-1]
    assert "img" not in found.tags
    for data in found.scripts[:2]:
        assert set(json.loads(data)) == {"data", "layout"}
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_payload_cannot_end_its_script() -> None:
    value = {"text": "</script><!--\u2028&amp;"}
    text = page.embedded(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_the_bundle_is_the_one_that_plotly_expects() -> None:
    packed = page.bundle()
    assert len(packed) < 500_000
    assert page.bundle_version(packed) == get_plotlyjs_version()
    assert b"Licensed under the MIT license" in gzip.decompress(packed)[:300]


def test_another_plotly_brings_its_own_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "get_plotlyjs_version", lambda: "999.0.0")
    monkeypatch.setattr(page, "get_plotlyjs", lambda: "/* another */")
    page.bundle.cache_clear()
    try:
        assert gzip.decompress(page.bundle()) == b"/* another */"
    finally:
        page.bundle.cache_clear()


def test_nothing_finished(tmp_path: Path) -> None:
    of = study()
    written = write_report(of, ledger(tmp_path / "ledger", of, lambda number, trial: False), tmp_path / "report")
    text = written.report_html.read_text()
    assert "No trial has finished yet" in text
    assert Scripts(text).scripts == []
    assert "0 of 84 trials finished; 84 pending" in text
    assert "84 trials have been claimed and have no result yet." in text
    assert len(pd.read_parquet(written.trials)) == 0


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"optimizer.learning_rate": Log(1e-4, 1e-1, points=3)},
        {"head": Choice(Linear(), LowRank(rank=8))},
        {"model.kv_heads": Choice(None, 2), "head.tied": Choice(True, False)},
    ],
)
def test_few_axes_and_values_of_every_kind(tmp_path: Path, axes: dict[str, object]) -> None:
    of = study(axes=axes, model=Decoder(width=32, depth=2, attention_heads=4), replicates=1)
    made = ledger(tmp_path / "ledger", of, lambda number, trial: number == 0)
    written = write_report(of, made, tmp_path / "report")
    assert len(pd.read_parquet(written.trials)) == 1
    assert ("sensitivity" in written.measures) == ("optimizer.learning_rate" in axes)
    assert len(pd.read_parquet(written.surface)) == max(1, len(list(of.cells())))


def test_scattered_trials_are_points(tmp_path: Path) -> None:
    of = study(
        axes={
            "task.vocab_size": Choice(64, 1024),
            "optimizer.learning_rate": Log(1e-4, 1e-1),
            "optimizer.weight_decay": Span(0.0, 0.1),
        },
        search=Random(cells=6),
        replicates=1,
    )
    made = Ledger(tmp_path / "ledger")
    made.open(of, {"device": "cpu"})
    for number, rate in enumerate((1.1e-4, 1.3e-3, 2e-2, 9e-2)):
        cell = of.cell({"task.vocab_size": 64, "optimizer.learning_rate": rate, "optimizer.weight_decay": rate})
        trial = of.trial(cell, 0)
        made.claim(number, trial.key, cell, 0)
        if number:
            finish(made, trial)
    written = write_report(of, made, tmp_path / "report")
    figure = json.loads(Scripts(written.report_html.read_text()).scripts[0])
    assert {trace["type"] for trace in figure["data"]} == {"scatter"}
    assert "The search makes 6 trials; 3 are finished." in written.report_html.read_text()


def test_a_stale_sensitivity_does_not_outlive_its_axis(tmp_path: Path) -> None:
    of = study(axes={"optimizer.learning_rate": Log(1e-4, 1e-1, points=3)})
    assert "sensitivity" in write_report(of, ledger(tmp_path / "one", of), tmp_path / "report").measures
    (tmp_path / "report" / "curves.html").write_text("what an earlier version wrote")
    other = study(axes={"task.vocab_size": Choice(64, 256)})
    written = write_report(other, ledger(tmp_path / "two", other), tmp_path / "report")
    assert "sensitivity" not in written.measures
    assert {path.name for path in (tmp_path / "report").iterdir()} == {path.name for path in written.files}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_bytes(b"before")

    def fails(source: Path, destination: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(write.os, "replace", fails)
    with pytest.raises(OSError, match="the disk is full"):
        write._write(target, b"after")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("report.html", b"before")]


def test_parquet_depends_on_values_alone() -> None:
    table = pd.DataFrame({"axis": ["None", 2], "value": [1.0, float("nan")]})
    data = parquet(table)
    assert data == parquet(table.set_axis([5, 9]))
    assert pd.read_parquet(io.BytesIO(data))["axis"].tolist() == ["None", "2"]
    assert b"pandas" not in data
