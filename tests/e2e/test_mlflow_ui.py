"""MLflow's own pages, served over HTTP and opened in a browser, show a published study ready to compare.

The format of saved views is MLflow's own and undocumented: this is what holds ours to the MLflow that is installed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, DRAWN, Browser

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_track_example import filled, study

from isoloss.report.write import write_report
from isoloss.track.client import connect
from isoloss.track.publish import Published, publish

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"),
    *("--disable-background-networking", "--disable-sync", "--window-size=2000,1500", "--virtual-time-budget=40000"),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on loopback with its own database and artifacts."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"),
        *("--port", host.partition(":")[2], "--allowed-hosts", host),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")),
    ]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"http://{host}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "the server did not start in time"
                time.sleep(0.5)
        yield f"http://{host}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def done(server: str, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A study of 16 trials, published over HTTP, twice."""
    folder = tmp_path_factory.mktemp("study")
    ledger = filled(folder / "ledger")
    write_report(study(), ledger, folder / "report")
    first = publish(study(), ledger, server, folder / "report")
    files = len(list((folder / "report").iterdir()))
    assert (first.trials, first.written, first.files, first.error) == (16, 16, files, "")
    again = publish(study(), ledger, server)
    assert (again.trials, again.written, again.error) == (16, 0, "")
    return again


def page(url: str, tmp_path: Path) -> str:
    """Return the page as the browser has built it, once its scripts have come to rest."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path}/profile", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


def test_one_run_a_trial_over_http(done: Published) -> None:
    client = connect(done.tracking_uri)
    runs = client.search_runs([done.experiment_id], max_results=1000)
    assert len({run.info.run_name for run in runs}) == len(runs) == 17
    first = next(run.info.run_id for run in runs if run.info.run_name == "t0000")
    points = client.get_metric_history(first, "eval/loss")
    assert [point.step for point in points] == study().evaluation.steps(300)
    assert [file.path for file in client.list_artifacts(first)] == ["curve.csv"]
    assert {"report.html", "surface.png", "surface.parquet"} <= {
        file.path for file in client.list_artifacts(done.run_id)
    }


def test_compare_opens_with_parallel_coordinates_map_and_scatter(done: Published, tmp_path: Path) -> None:
    text = page(done.link("compare"), tmp_path)
    assert "isoloss: compare trials" in text  # the menu of views names the one that is open
    assert "Parallel Coordinates" in text
    for axis in ("log2_vocab_size", "log2_rank", "log10_learning_rate"):
        assert f"{axis} vs. result/log10_capped_excess" in text  # a scatter chart's title
    assert "log10_learning_rate vs. log2_vocab_size vs. result/log10_capped_excess" in text  # the map's
    assert 'class="contour' in text  # drawn, not only announced
    assert "No chart data available" not in text


def test_curves_open_with_four_charts_and_no_more(done: Published, tmp_path: Path) -> None:
    text = page(done.link("curves"), tmp_path)
    assert "isoloss: curves" in text
    for title in ("eval/excess", "train/loss", "train/gradient_norm", "train/learning_rate"):
        assert f"t0000 ({title})" in text  # the chart's legend
    for hidden in ("result/tokens", "result/seconds", "(eval/loss)"):
        assert hidden not in text
    assert 'class="trace scatter' in text


def test_the_table_shows_axes_outcome_and_excess(done: Published, tmp_path: Path) -> None:
    text = page(done.link("table"), tmp_path)
    assert "isoloss: table" in text
    columns = ["isoloss.outcome", "vocab_size", "rank", "learning_rate", "replicate", "result/final_excess"]
    places = [text.find(f">{column}<") for column in columns]
    assert -1 not in places, dict(zip(columns, places, strict=True))
    for outcome in ("converged", "plateaued"):
        assert f">{outcome}<" in text
    assert ">t0002<" in text


def test_the_report_draws_in_the_artifact_pane(done: Published, tmp_path: Path) -> None:
    run = f"#/experiments/{done.experiment_id}/runs/{done.run_id}"
    browser = Browser(tmp_path)
    try:
        outer = browser.open(f"{done.tracking_uri}/{run}/artifacts/report.html")
        frame = browser.frame()
        browser.until(frame, DRAWN)
        assert browser.value(frame, "document.querySelectorAll('.heatmaplayer image').length") >= 1
        assert study().question in browser.value(frame, "document.body.innerText")
        if "ISOLOSS_PICTURES" in os.environ:
            browser.picture(outer, Path(os.environ["ISOLOSS_PICTURES"]) / "pane.png")
    finally:
        browser.close()
