"""Ray shows its token exactly where there is one, and the user has said nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isoloss.run.token import show_token


@pytest.mark.parametrize(
    ("set_", "file", "mode"),
    [
        ({}, False, None),
        ({}, True, "token"),
        ({"RAY_AUTH_TOKEN": "secret"}, False, "token"),
        ({"RAY_AUTH_TOKEN_PATH": "/run/secret"}, False, "token"),
        ({"RAY_AUTH_MODE": "disabled"}, True, "disabled"),
    ],
)
def test_a_token_is_shown(
    set_: dict[str, str], file: bool, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone, too
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), **set_}.items():
        monkeypatch.setenv(name, value)
    if file:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("secret")
    show_token()
    assert os.environ.get("RAY_AUTH_MODE") == mode
