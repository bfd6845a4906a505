"""Ledgers of finished studies with known losses, made without training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isoloss import AdamW, Choice, Curve, Decoder, LowRank, SpamLang, Steps, Study, Verdict
from isoloss.result import SERIES, Result
from isoloss.run.ledger import Ledger
from isoloss.run.state import State

RATE, VOCABULARY, RANK, HEAD = "optimizer.learning_rate", "task.vocab_size", "head.rank", "head"
RATES = (1e-3, 1e-2, 1e-1)

Excess = Callable[[dict[str, Any], int], float]


def study(**changes: Any) -> Study:
    fields: dict[str, Any] = {
        "name": "a",
        "question": "Does it train?",
        "task": SpamLang(vocab_size=8, sequence_length=4),
        "model": Decoder(width=8, depth=1, attention_heads=1),
        "head": LowRank(rank=2),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(100, batch_size=2),
        "axes": {VOCABULARY: Choice(8, 64), RATE: Choice(*RATES)},
        "replicates": 3,
        "verdict": Verdict(converged_below=0.1),
    }
    return Study(**{**fields, **changes})


def finish(ledger: Ledger, of: Study, excess: Excess, most: int | None = None, backwards: bool = False) -> Ledger:
    """Give a ledger the study and the results of its grid's trials, at most so many, in either order."""
    ledger.open(of, {"device": "cpu"})
    trials = list(of.trials())[:most]
    for number, (cell, trial) in enumerate(reversed(trials) if backwards else trials):
        ledger.claim(number, trial.key, cell, trial.replicate)
        first, last = math.log(trial.task.vocab_size), float(excess(dict(cell), trial.replicate))
        curve = Curve((0, 50, 100), (first, (first + last) / 2, last), (0.0, 0.0, 0.001), floor=0.0)
        series = {**dict.fromkeys(SERIES, (None, 1.5, 1.25)), "learning_rate": (None, 0.1, 0.0)}
        machine = {"device": "cpu", "dtype": "float32", "seconds": number}
        ledger.finish(Result(trial.key, trial.canonical, curve, series, machine))
    return ledger


def made(folder: Path, of: Study, excess: Excess, most: int | None = None) -> tuple[Study, Ledger]:
    """Return the study and its ledger in a state folder."""
    return of, finish(State(folder).ledger(of.name), of, excess, most)
