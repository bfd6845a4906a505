"""The ledger that tracking tests publish: trials of all five outcomes, one lost to a machine, one still waiting."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from isoloss import AdamW, Choice, Curve, Decoder, Log, LowRank, Outcome, SpamLang, Steps, Study, Verdict
from isoloss.result import Result
from isoloss.run.ledger import Claim, Ledger
from isoloss.study import Trial

RATES = (1e-4, 1e-3, 1e-2, 1e-1)
EXPECTED = {
    1e-4: Outcome.UNDERTRAINED,
    1e-3: Outcome.PLATEAUED,
    1e-2: Outcome.CONVERGED,
    1e-1: Outcome.DIVERGED,
}
"""What the made-up curves at rank 8 are judged; at rank 4 the largest rate is nonfinite instead."""


def study(**changes: Any) -> Study:
    """Return a study of V x rank x learning rate with 16 trials, changed as asked."""
    fields: dict[str, Any] = {
        "name": "spamlang-rank",
        "question": "Does a low-rank head narrow the band of learning rates that converge?",
        "task": SpamLang(vocab_size=64, sequence_length=8),
        "model": Decoder(width=32, depth=2),
        "head": LowRank(rank=8),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(300, batch_size=32),
        "axes": {
            "task.vocab_size": Choice(64, 256),
            "head.rank": Choice(4, 8),
            "optimizer.learning_rate": Log(1e-4, 1e-1, points=4),
        },
        "verdict": Verdict(still_falling=0.1),
    }
    return Study(**{**fields, **changes})


def result(trial: Trial) -> Result:
    """Return a made-up result whose outcome follows from the trial's learning rate and rank."""
    rate, rank = trial.optimizer.learning_rate, trial.head.rank if isinstance(trial.head, LowRank) else 32
    initial = math.log(trial.task.vocab_size)
    steps = trial.evaluation.steps(trial.steps)
    nearest = min(RATES, key=lambda known: abs(math.log(known / rate)))
    if nearest == 1e-4:  # falls to the end
        losses = [initial * (1 - 0.4 * step / trial.steps) for step in steps]
    elif nearest == 1e-3:  # flat, above the threshold, lower at higher rank
        losses = [initial * (0.8 / rank + (1 - 0.8 / rank) * math.exp(-step / 8)) for step in steps]
    elif nearest == 1e-2:
        losses = [initial * math.exp(-step / 6) + 1e-3 / rank for step in steps]
    else:
        losses = [initial * (1 + 0.3 * min(step, 10) / 10) for step in steps]
    ended = "budget"
    if nearest == 1e-1 and rank == 4:
        steps, losses, ended = steps[:8], losses[:8], "nonfinite"
    noise = tuple(0.01 for _ in steps)
    curve = Curve(tuple(steps), tuple(losses), noise, trial.task.floor, ended)  # type: ignore[arg-type]
    norms = tuple(None if i == 0 else 1.0 / i for i in range(len(steps) - 1))
    series = {
        "train_loss": (None, *losses[1:]),
        # The last norm before a non-finite step may itself be infinite.
        "gradient_norm": (*norms, math.inf if ended == "nonfinite" else 0.1),
        "learning_rate": (None, *(rate for _ in steps[1:])),
    }
    machine = {"device": "cpu", "dtype": "float32", "workers": 2, "versions": {"torch": "2.9.0"}, "seconds": 1.25}
    return Result(trial.key, trial.canonical, curve, series, machine)


def claim_all(ledger: Ledger, of: Study) -> list[tuple[Claim, Trial]]:
    """Open the ledger and claim every trial of the study."""
    ledger.open(of, {"device": "cpu"})
    return [
        (ledger.claim(number, trial.key, cell, trial.replicate), trial)
        for number, (cell, trial) in enumerate(of.trials())
    ]


def filled(root: Path, of: Study | None = None, lost: int = 1, waiting: int = 1) -> Ledger:
    """Return a ledger with a result for every trial but the last ones: ``lost`` to machines, ``waiting`` for theirs."""
    of = of or study()
    ledger = Ledger(root)
    claims = claim_all(ledger, of)
    done = len(claims) - lost - waiting
    for number, (claim, trial) in enumerate(claims):
        if number < done:
            ledger.finish(result(trial))
        elif number < done + lost:
            ledger.give_up(claim.key, "lost", "the worker's node went away three times")
    return ledger


@cache
def _empty_database() -> Path:
    from isoloss.track.client import connect

    path = Path(mkdtemp(prefix="isoloss-track-")) / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


def database(folder: Path) -> str:
    """Return the URI of a new MLflow database in ``folder``: a copy, since making one takes five seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_empty_database(), folder / "mlflow.db")
    return f"sqlite:///{folder}/mlflow.db"


def runs_by_name(uri: str, name: str = "spamlang-rank") -> dict[str, Any]:
    """Return the active runs of an experiment by name; fails when two share one."""
    from isoloss.track.client import connect

    client = connect(uri)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    named = {run.info.run_name: run for run in runs}
    assert len(named) == len(runs)
    return named


def history(uri: str, run_id: str) -> list[tuple[str, int, int, float]]:
    """Return every metric point of a run as (name, step, timestamp, value), sorted: the rows themselves."""
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as rows:
        query = "select key, step, timestamp, value from metrics where run_uuid = ? order by 1, 2, 3, 4"
        return rows.execute(query, [run_id]).fetchall()


def points(uri: str) -> int:
    """Return how many metric points a database holds."""
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as rows:
        return int(rows.execute("select count(*) from metrics").fetchone()[0])


@contextmanager
def silent_server() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def closed_address() -> str:
    """Return an address at which nothing listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
