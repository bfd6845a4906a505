"""The report's page in a real browser: it draws offline, also in the sandbox in which MLflow shows artifacts."""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isoloss import AdamW, Boundary, Choice, Curve, Decoder, Linear, Log, SpamLang, Steps, Study
from isoloss.report.write import Written, write_report
from isoloss.result import SERIES, Result
from isoloss.run.ledger import Ledger

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"),
    *("--disable-background-networking", "--disable-sync", "--window-size=1100,1000", "--remote-debugging-pipe"),
)
CONSOLE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
WITH_NAMES = ("image", "img", "region", "table", "link", "heading")
QUESTION = "Does it hold? </script><script>document.title = 'broken out'</script><img src=x onerror='document.title=1'>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


class Browser:
    """A headless Chromium, told what to do over its debugging pipe: JSON messages that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def numbered() -> None:
            # Chromium reads commands from descriptor 3 and answers on 4; move ours out of the way first.
            one, two = os.dup(to_browser), os.dup(from_browser)
            os.dup2(one, 3)
            os.dup2(two, 4)

        assert CHROMIUM is not None
        self.process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=numbered, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._pending = 0, b""
        self.said: list[dict[str, Any]] = []
        """What the browser told without being asked."""

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one command and return its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._pending:
                chunk = os.read(self._read, 1 << 16)
                assert chunk, "the browser has gone"
                self._pending += chunk
            text, _, self._pending = self._pending.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.said.append(answer)

    def open(self, url: str) -> str:
        """Open a page and return its session."""
        target = self.ask("Target.createTarget", url=url)["targetId"]
        return str(self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])

    def frame(self) -> str:
        """Return the session of the only frame that runs in a process of its own, as a sandboxed one does."""
        for _ in range(100):
            for info in self.ask("Target.getTargets", filter=[{"type": "iframe"}])["targetInfos"]:
                return str(self.ask("Target.attachToTarget", targetId=info["targetId"], flatten=True)["sessionId"])
            time.sleep(0.1)
        raise AssertionError("no frame appeared")

    def value(self, session: str, expression: str) -> Any:
        return self.ask("Runtime.evaluate", session, expression=expression, returnByValue=True)["result"].get("value")

    def until(self, session: str, expression: str, seconds: float = 30) -> Any:
        """Return the expression's value once it is true; fail after ``seconds``."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.value(session, expression)
            if found:
                return found
            time.sleep(0.1)
        return pytest.fail(f"never true: {expression}; page says {self.value(session, 'document.body.innerText')!r}")

    def picture(self, session: str, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", session, format="png")["data"]))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self._read)
        os.close(self._write)


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


DRAWN = (
    "(places => places.length > 0 && places.every(place => place.querySelector('svg.main-svg')))"
    "([...document.querySelectorAll('.drawing')])"
)
"""Whether every figure is drawn."""

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
