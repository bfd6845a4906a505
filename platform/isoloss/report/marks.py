"""The marks of outcomes: one letter, symbol and colour each, so that no map relies on colour alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isoloss.outcome import Outcome
from isoloss.report import words
from isoloss.study import Study


@dataclass(frozen=True)
class Mark:
    """How one state of a trial is drawn: ``glyph`` is its symbol in text; the libraries name it differently."""

    name: str
    letter: str
    glyph: str
    colour: str
    ink: str
    terminal: str
    plotly_symbol: str = "circle-open"
    matplotlib_marker: str = "."


# After Okabe and Ito's colours, which the common colour blindnesses keep apart; ink is what reads well on the colour.
MARKS: Mapping[str, Mark] = {
    mark.name: mark
    for mark in (
        Mark(str(Outcome.CONVERGED), "C", "●", "#0072B2", "#ffffff", "bold blue", "circle", "o"),
        Mark(str(Outcome.UNDERTRAINED), "u", "▼", "#8CCBEE", "#000000", "cyan", "triangle-down", "v"),
        Mark(str(Outcome.PLATEAUED), "p", "■", "#E9B949", "#000000", "yellow", "square", "s"),
        Mark(str(Outcome.DIVERGED), "D", "✖", "#C44E00", "#ffffff", "red", "x", "X"),
        Mark(str(Outcome.NONFINITE), "N", "★", "#3B3B3B", "#ffffff", "magenta", "star", "*"),
        Mark("pending", "…", "○", "#E3E3E3", "#555555", "dim"),
        Mark("given_up", "!", "○", "#E3E3E3", "#555555", "dim"),
        Mark("missing", "·", "", "#FFFFFF", "#555555", "dim"),
    )
}

IN_ASCII = str.maketrans({"…": "~", "·": ".", "–": "-", "±": "+-", "→": "->", "≤": "<="})
"""Stand-ins for what a terminal without Unicode cannot show."""


def meanings(study: Study) -> dict[str, str]:
    """Return what each mark means, in words, with the thresholds of the study's verdict."""
    verdict = study.verdict
    return {
        str(
            Outcome.CONVERGED
        ): f"final {words.loss_name(study)} at most {verdict.converged_below:g} {study.task.unit_in_full}",
        str(Outcome.UNDERTRAINED): "above that, and still falling at the end of the budget",
        str(Outcome.PLATEAUED): "above that, and flat at the end of the budget",
        str(Outcome.DIVERGED): (
            f"ended above its initial loss, or gave back more than {verdict.lost_progress:.0%} of its best progress"
        ),
        str(Outcome.NONFINITE): "met a loss, gradient or weight that was not finite",
        "pending": "claimed, without a result yet",
        "given_up": "given up because a machine lost it or ran out of memory: no outcome; the next run tries again",
        "missing": "not tried yet",
    }


def state(cell: Mapping[str, Any]) -> str:
    """Return the name of the mark that a cell of the surface is drawn with."""
    if cell["finished"]:
        return str(cell["outcome"])
    return next((name for name in ("pending", "given_up") if cell[name]), "missing")


def code(cell: Mapping[str, Any]) -> str:
    """Return a cell in letters: one where all its replicates agree, else each letter with its count, as in ``C1u1``."""
    counts = {name: int(cell[name]) for name in MARKS if cell[name]}
    if len(counts) <= 1:
        return MARKS[next(iter(counts), "missing")].letter
    return "".join(f"{MARKS[name].letter}{count}" for name, count in counts.items())


def tally(cell: Mapping[str, Any]) -> str:
    """Return a cell in words, such as ``1/2 converged, 1/2 undertrained``."""
    total = sum(int(cell[name]) for name in MARKS)
    return ", ".join(f"{int(cell[name])}/{total} {name.replace('_', ' ')}" for name in MARKS if cell[name])
