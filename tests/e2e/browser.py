"""A headless Chromium, driven over its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"),
    *("--disable-background-networking", "--disable-sync", "--window-size=1100,1000", "--remote-debugging-pipe"),
)
DRAWN = (
    "(places => places.length > 0 && places.every(place => place.querySelector('svg.main-svg')))"
    "([...document.querySelectorAll('.drawing')])"
)
"""Whether every figure is drawn."""


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
