"""What the study comes to undisturbed: its trials trained by plain torch processes, without Ray."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.multiprocessing

from isoloss.report.write import write_report
from isoloss.run.ledger import Ledger
from isoloss.study_file import load_study
from isoloss.train.loop import train
from isoloss.train.settings import Settings

PROCESSES = 2


def train_all(study_file: Path, folder: Path) -> Ledger:
    """Train every trial of a study into a ledger in ``folder``, two at a time, and write its report beside it."""
    ledger, study = Ledger(folder / "ledger"), load_study(str(study_file))
    ledger.open(study, Settings().arithmetic)
    for number, (cell, trial) in enumerate(study.trials()):
        ledger.claim(number, trial.key, cell, trial.replicate)
    torch.multiprocessing.spawn(_train_share, (str(study_file), ledger.root), nprocs=PROCESSES)
    write_report(study, ledger, folder / "report")
    return ledger


def steps_that_take(seconds: float, study_file: Path) -> int:
    """Return how many updates, in hundreds, one process makes of a study's first trial in that time."""
    torch.set_num_threads(1)
    _, trial = next(iter(load_study(str(study_file)).trials()))
    train(trial, Settings())  # loads what the first training loads
    taken = train(trial, Settings()).machine["seconds"]
    return 100 * max(round(seconds * trial.steps / taken / 100), 1)


def _train_share(rank: int, study_file: str, root: str) -> None:
    torch.set_num_threads(1)
    for _, trial in list(load_study(study_file).trials())[rank::PROCESSES]:
        Ledger(root).finish(train(trial, Settings()))
