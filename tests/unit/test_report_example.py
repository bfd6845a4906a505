"""The ledger that report tests draw: SpamLang's measured losses, with curves that end in each of the five outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from isoloss import AdamW, Coverage, Curve, Decoder, Linear, Log, SpamLang, Steps, Study
from isoloss.analysis.table import trials_table
from isoloss.config.axes import Choice
from isoloss.result import SERIES, Result
from isoloss.run.ledger import Ledger
from isoloss.study import Trial

FINAL = {
    64: (3.28, 2.46, 0.33, 0.002, 0.0004, 0.0001, 0.0004),
    256: (5.05, 4.44, 2.69, 0.075, 0.0, 0.0, 0.002),
    1024: (6.74, 6.41, 5.60, 3.3, 0.57, 1.5, 4.2),
}
"""Final loss by V and learning rate (1e-4 to 1e-1, half a decade apart) after 300 steps of 32 sequences."""

FINAL_AT_EQUAL_COVERAGE = {
    64: (3.55, 3.01, 1.42, 0.020, 0.0, 0.0, 0.007),
    256: FINAL[256],
    1024: (6.50, 5.88, 4.06, 0.25, 0.001, 0.0, 0.0),
}
"""The same where the batch grows with V, so that every symbol is drawn 37.5 times."""

HOSTILE = "Does </script><script>alert(1)</script> & \"C\" < 'D' $\\frac$ [red]hold?"


def study(**changes: object) -> Study:
    """Return V x learning rate x budget with two replicates, changed as asked."""
    fields: dict[str, object] = {
        "name": "spamlang-vocab",
        "question": "Does the band of learning rates that converge narrow as the vocabulary grows?",
        "task": SpamLang(vocab_size=64, sequence_length=8),
        "model": Decoder(width=32, depth=2),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(300, batch_size=32),
        "axes": {
            "task.vocab_size": Choice(64, 256, 1024),
            "optimizer.learning_rate": Log(1e-4, 1e-1, points=7),
            "budget": Choice(Steps(300, batch_size=32), Coverage(37.5, steps=300)),
        },
        "replicates": 2,
    }
    return Study(**{**fields, **changes})


def curve(trial: Trial) -> Curve:
    """Return a made-up curve that ends near the measured loss of the trial's V and learning rate."""
    vocab, rate = trial.task.vocab_size, trial.optimizer.learning_rate
    initial = math.log(vocab)
    nearest = min(FINAL, key=lambda known: abs(math.log(known / vocab)))
    place = min(max(2 * (math.log10(rate) + 4), 0.0), 6.0)
    row = (FINAL_AT_EQUAL_COVERAGE if isinstance(trial.budget, Coverage) else FINAL)[nearest]
    left, right = row[int(place)], row[min(int(place) + 1, 6)]
    final = left + (place - int(place)) * (right - left)
    final *= 1 + (0.03 if final > 0.1 else -0.4) * trial.replicate
    final = min(final, 0.99 * initial)
    steps = tuple(trial.evaluation.steps(trial.steps))
    ended = "budget"
    if vocab == 1024 and rate > 0.09 and isinstance(trial.budget, Steps):
        ended = "nonfinite" if trial.replicate else "above_initial"
        steps = steps[:12]
        final = initial * 1.3
    half = 12 if final > 1.0 and rate > 0.02 else 60
    fall = [1 - math.exp(-step / half) for step in steps]
    loss = tuple(initial - (initial - final) * share / fall[-1] for share in fall)
    return Curve(steps, loss, (0.001,) * len(steps), 0.0, ended)


def ledger(folder: Path, of: Study, keep: Callable[[int, Trial], bool] = lambda number, trial: True) -> Ledger:
    """Return a ledger in which every trial of the grid is claimed, and those that ``keep`` names are finished."""
    made = Ledger(folder)
    made.open(of, {"device": "cpu"})
    for number, (cell, trial) in enumerate(of.trials()):
        made.claim(number, trial.key, cell, trial.replicate)
        if keep(number, trial):
            finish(made, trial)
    return made


def finish(made: Ledger, trial: Trial) -> None:
    """Record the made-up result of one trial."""
    measured = curve(trial)
    series = {name: (None, *(0.1,) * (len(measured.step) - 1)) for name in SERIES}
    made.finish(Result(trial.key, trial.canonical, measured, series, {"device": "cpu"}))


def test_the_example_holds_every_outcome(tmp_path: Path) -> None:
    table = trials_table(study(), ledger(tmp_path, study()))
    assert len(table) == 3 * 7 * 2 * 2
    assert set(table["outcome"]) == {"converged", "undertrained", "plateaued", "diverged", "nonfinite"}
