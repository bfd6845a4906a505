"""What commands print: text for people, or JSON for scripts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def console(stderr: bool = False) -> Console:
    """Return a console for text, which it shows as it is: what a file or a server says is never read as markup."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

    return Plain(highlight=False, stderr=stderr, markup=False, emoji=False)


def visible(text: str) -> str:
    """Return ``text`` without characters that command a terminal instead of being shown by it."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) != "Cc" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def say(facts: Any, as_json: bool, text: Callable[[Console], object]) -> None:
    """Print ``facts`` as JSON, or have ``text`` print them for people."""
    if as_json:
        print(json.dumps(facts))
    else:
        text(console())
