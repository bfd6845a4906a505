"""The report's page in a real browser: it draws offline, also in the sandbox in which MLflow shows artifacts."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, DRAWN, Browser

from isoloss import AdamW, Boundary, Choice, Curve, Decoder, Linear, Log, SpamLang, Steps, Study
from isoloss.report.write import Written, write_report
from isoloss.result import SERIES, Result
from isoloss.run.ledger import Ledger

CONSOLE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
WITH_NAMES = ("image", "img", "region", "table", "link", "heading")
QUESTION = "Does it hold? </script><script>document.title = 'broken out'</script><img src=x onerror='document.title=1'>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Written:
    study = Study(
        name="in-a-browser",
        question=QUESTION,
        task=SpamLang(vocab_size=64, sequence_length=8),
        model=Decoder(width=32, depth=1),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(100, batch_size=8),
        axes={"task.vocab_size": Choice(64, 256), "optimizer.learning_rate": Log(1e-3, 1e-1, points=3)},
    )
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    ledger.open(study, {"device": "cpu"})
    for number, (cell, trial) in enumerate(study.trials()):
        ledger.claim(number, trial.key, cell, trial.replicate)
        initial = math.log(trial.task.vocab_size)
        curve = Curve((0, 10, 100), (initial, initial / 2, 0.01 * number), (0.001,) * 3, 0.0)
        ledger.finish(Result(trial.key, trial.canonical, curve, dict.fromkeys(SERIES, (None, 0.1, 0.1))))
    return write_report(study, ledger, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def boundary(tmp_path_factory: pytest.TempPathFactory) -> Written:
    study = Study(
        name="in-a-browser",
        question=QUESTION,
        task=SpamLang(vocab_size=64, sequence_length=8),
        model=Decoder(width=32, depth=1),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(100, batch_size=8),
        axes={"task.vocab_size": Choice(64, 256), "optimizer.learning_rate": Log(1e-4, 1.0)},
        search=Boundary(trials=32),
    )
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    ledger.open(study, {"device": "cpu"})
    for number in range(24):
        rate = 10 ** (-4 + (number // 2 + 0.5) / 3)
        cell = study.cell({"task.vocab_size": (64, 256)[number % 2], "optimizer.learning_rate": rate})
        trial = study.trial(cell, 0)
        ledger.claim(number, trial.key, cell, 0)
        initial = math.log(trial.task.vocab_size)
        final = 0.001 if number % 2 == 0 and 2e-3 < rate < 1e-1 else initial / 2
        curve = Curve((0, 10, 100), (initial, final, final), (0.001,) * 3, 0.0)
        ledger.finish(Result(trial.key, trial.canonical, curve, dict.fromkeys(SERIES, (None, 0.1, 0.1))))
    return write_report(study, ledger, tmp_path_factory.mktemp("report"))


def in_sandbox(page: Path, folder: Path) -> str:
    """Return the address of a page that shows another as MLflow shows an HTML artifact."""
    data = base64.b64encode(page.read_bytes()).decode()
    outer = folder / f"frame-{page.name}"
    outer.write_text(
        f"""<iframe id="frame" sandbox="allow-scripts" style="width:1060px;height:960px"></iframe><script>
        const bytes = Uint8Array.from(atob("{data}"), c => c.charCodeAt(0));
        document.getElementById("frame").src = URL.createObjectURL(new Blob([bytes], {{type: "text/html"}}));
        </script>"""
    )
    return outer.as_uri()


MARKS = {
    "report": {"#figure-1": ".heatmaplayer image", "#figure-2": ".trace.scatter"},
    "boundary": {"#figure-1": ".trace.scatter", "#figure-2": ".heatmaplayer image", "#figure-3": ".trace.scatter"},
}


def drawing(figure: str) -> str:
    """Return the selector of the place where a figure's data are drawn."""
    return f".drawing[data-figure={figure.removeprefix('#')}]"


@pytest.mark.parametrize("of", ["report", "boundary"])
def test_the_page_draws_in_mlflows_sandbox(
    browser: Browser, request: pytest.FixtureRequest, tmp_path: Path, of: str
) -> None:
    page = request.getfixturevalue(of).report_html
    outer = browser.open(in_sandbox(page, tmp_path))
    frame = browser.frame()
    browser.until(frame, DRAWN)
    for figure, marks in MARKS[of].items():
        assert browser.value(frame, f"document.querySelectorAll('{drawing(figure)} {marks}').length") >= 1
    assert browser.value(frame, "window.origin") == "null"
    assert browser.value(frame, "document.querySelector('.failed')") is None
    assert browser.value(frame, "document.title") == "in-a-browser"
    assert QUESTION in browser.value(frame, "document.body.innerText")
    if "ISOLOSS_PICTURES" in os.environ:
        browser.picture(outer, Path(os.environ["ISOLOSS_PICTURES"]) / f"sandbox-{of}.png")
    browser.ask("Target.closeTarget", targetId=browser.ask("Target.getTargetInfo", outer)["targetInfo"]["targetId"])


def test_the_page_draws_as_a_file_and_asks_the_network_for_nothing(browser: Browser, report: Written) -> None:
    session = browser.open("about:blank")
    browser.ask("Runtime.enable", session)
    browser.ask("Log.enable", session)
    browser.said.clear()
    browser.ask("Page.navigate", session, url=report.report_html.as_uri())
    browser.until(session, DRAWN)
    assert not [said for said in browser.said if said["method"] in CONSOLE]
    loaded = browser.value(session, "performance.getEntriesByType('resource').map(entry => entry.name).join(' ')")
    assert "http" not in loaded
    texts = browser.value(
        session, "[...document.querySelectorAll('.annotation-text')].map(t => t.textContent).join('|')"
    )
    assert "outcome" in texts
    assert "median excess loss" in texts
    buttons = browser.value(session, "[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title).join()")
    assert "Download" in buttons
    assert "cloud" not in buttons.lower()
    label = "document.querySelector('[role=img]').getAttribute('aria-label')"
    assert browser.value(session, label).startswith("Outcome and median excess loss")


def test_the_page_is_read_and_walked_without_a_mouse(browser: Browser, report: Written) -> None:
    session = browser.open(report.report_html.as_uri())
    browser.until(session, DRAWN)
    tree = browser.ask("Accessibility.getFullAXTree", session)["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    roles = [role for role, _ in named]
    assert {"banner", "navigation", "main", "region", "table", "rowheader", "columnheader"} <= set(roles)
    unnamed = [role for role, name in named if role in WITH_NAMES and not name]
    assert not unnamed
    # The first stop is the link that skips to the content; every region that scrolls is a stop, too.
    focus = "document.activeElement.getAttribute('href') || document.activeElement.getAttribute('aria-label')"
    stops = []
    for _ in range(40):
        for kind in ("keyDown", "keyUp"):
            browser.ask("Input.dispatchKeyEvent", session, type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        stops.append(browser.value(session, focus))
    assert stops[0] == "#main"
    assert {"Figure, scrolls sideways", "Learning-rate sensitivity by vocab size"} <= set(stops)


def test_the_page_prints_whole(browser: Browser, report: Written) -> None:
    session = browser.open(report.report_html.as_uri())
    browser.until(session, DRAWN)
    assert browser.value(session, "document.querySelector('details').open") is False
    printed = browser.ask("Page.printToPDF", session, preferCSSPageSize=True, transferMode="ReturnAsBase64")
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert browser.value(session, "[...document.querySelectorAll('details')].every(one => one.open)")


def test_a_boundary_is_drawn_and_told(browser: Browser, boundary: Written) -> None:
    session = browser.open(boundary.report_html.as_uri())
    browser.until(session, DRAWN)
    texts = browser.value(
        session, "[...document.querySelectorAll('.annotation-text')].map(t => t.textContent).join('|')"
    )
    for title in ("probability that another seed converges", "learning rates that converge", "order of the trials"):
        assert title in texts
    assert "closed (" in texts
    # Outcomes are told by symbol too: circles and squares on the map.
    points = f"[...document.querySelectorAll('{drawing('#figure-2')} .subplot.xy .point')]"
    shapes = browser.value(session, f"new Set({points}.map(p => p.getAttribute('d').replace(/[^A-Z]/g, ''))).size")
    assert shapes >= 2
    label = browser.value(session, f"document.querySelector('{drawing('#figure-2')}').parentNode.ariaLabel")
    assert label.startswith("Probability that another seed converges")
    assert "vocab size 256: closed (probability" in label
    if "ISOLOSS_PICTURES" in os.environ:
        browser.picture(session, Path(os.environ["ISOLOSS_PICTURES"]) / "boundary.png")
