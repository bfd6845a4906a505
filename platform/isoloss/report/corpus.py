"""A prepared corpus for people and for scripts: what was kept and dropped, and what each vocabulary makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isoloss.config.tasks import Prepared
from isoloss.data.card import card_text
from isoloss.data.files import read_json
from isoloss.data.layout import Layout


def corpora(data: Path) -> list[dict[str, Any]]:
    """Return the corpora in a data folder, as ``facts_of`` does; of one that is not finished only name and folder."""
    return [
        facts_of(folder) if Layout(folder).card.is_file() else {"name": folder.name, "folder": str(folder)}
        for folder in sorted(data.glob("*"))
        if Layout(folder).request.is_file()
    ]


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what a prepared corpus holds, as JSON values: its card, bytes per token by V, and what was dropped."""
    layout = Layout(folder)
    card = Prepared.model_validate_json(layout.card.read_text())
    sizes = [{**size.model_dump(), "bytes_per_token": (card.bytes or 0) / size.tokens} for size in card.sizes]
    dropped = read_json(layout.manifest)["documents"]["dropped"]
    return {**card.model_dump(), "sizes": sizes, "dropped": dropped, "folder": str(folder)}


def line_of(facts: dict[str, Any]) -> str:
    """Return one line about a corpus."""
    if "digest" not in facts:
        return f"{facts['name']}: not finished; prepare it again to go on"
    vocab_sizes = ", ".join(str(size["vocab_size"]) for size in facts["sizes"])
    return (
        f"{facts['name']}: {facts['documents']:,} documents, {facts['bytes']:,} bytes, V {vocab_sizes}, digest "
        f"{facts['digest']}"
    )


def corpus_text(facts: dict[str, Any], card: Prepared) -> str:
    """Return a prepared corpus as text, which ends in its card, to be written into a study."""
    cells = [("V", "tokens", "held out", "bytes a token")]
    for size in facts["sizes"]:
        tokens, held_out = f"{size['tokens']:,}", f"{size['held_out_tokens']:,}"
        cells.append((str(size["vocab_size"]), tokens, held_out, f"{size['bytes_per_token']:.3f}"))
    return "\n".join(
        [
            f"{card.name}: {card.documents:,} documents of {card.bytes:,} bytes to train on, "
            f"{card.held_out_documents:,} of {card.held_out_bytes:,} held out",
            *(_dropped(reason, some) for reason, some in facts["dropped"].items()),
            *("  ".join(f"{cell:>13}" for cell in row) for row in cells),
            f"in {facts['folder']}; as task.data of a study:",
            card_text(card),
        ]
    )


def _dropped(reason: str, some: dict[str, Any]) -> str:
    first = some["first"][0]
    return f"dropped {some['documents']:,}: {reason}; the first is row {first['row']} of {first['file']}, {first['id']}"
