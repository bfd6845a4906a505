"""What commands print: text for people, or JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def console(stderr: bool = False) -> Console:
    """Return a console for text."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr)


def say(facts: Any, as_json: bool, text: Callable[[Console], object]) -> None:
    """Print ``facts`` as JSON, or have ``text`` print them for people."""
    if as_json:
        print(json.dumps(facts))
    else:
        text(console())
