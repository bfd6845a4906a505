"""The token that a Ray cluster asks for."""

from __future__ import annotations

import os
from pathlib import Path


def show_token() -> None:
    """Have Ray show its token, if there is one, to the clusters that this process connects to."""
    known = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if "RAY_AUTH_MODE" not in os.environ and (known or (Path.home() / ".ray" / "auth_token").exists()):
        os.environ["RAY_AUTH_MODE"] = "token"
