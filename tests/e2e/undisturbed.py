"""What a study's trials come to without Ray: trained one after another by plain torch processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from isoloss.report.write import write_report
from isoloss.run.ledger import Ledger
from isoloss.study_file import load_study
from isoloss.train.loop import train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers


def reference(study_file: Path, folder: Path, workers: int) -> dict[str, bytes]:
    """Return the numbers of every trial of a study file, trained by so many workers in ``folder``."""
    folder.mkdir()
    torch.multiprocessing.spawn(_train_all, (workers, str(study_file), str(folder)), nprocs=workers)
    written = write_report(load_study(str(study_file)), Ledger(folder), folder / "report")
    return numbers(Ledger(folder), written.trials)


def numbers(ledger: Ledger, trials: Path) -> dict[str, bytes]:
    """Return the table of trials, and every curve by key: all that must not depend on what happened to a run."""
    curves = {key: dataclasses.replace(ledger.result(key), machine={}).to_bytes() for key in ledger.finished()}
    return {"trials": trials.read_bytes(), **curves}


def _train_all(rank: int, count: int, study_file: str, folder: str) -> None:
    torch.set_num_threads(1)
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    study, ledger = load_study(study_file), Ledger(folder)
    if rank == 0:
        ledger.open(study, Settings().arithmetic)
    for number, (cell, trial) in enumerate(study.trials()):
        result = train(trial, Settings(), Workers(rank, count))
        if rank == 0:
            ledger.claim(number, trial.key, cell, trial.replicate)
            ledger.finish(result)
