"""Tasks: what is learned, its floor and its batches, one module a task."""

from __future__ import annotations

from pathlib import Path

from isoloss.config.tasks import SpamLang
from isoloss.data.card import data_folder
from isoloss.study import Trial
from isoloss.tasks.base import Data
from isoloss.tasks.spamlang import SpamLangData
from isoloss.tasks.text import TextData


def load(trial: Trial, folder: Path | None = None) -> Data:
    """Return the data of a trial's task; ``folder`` is that of prepared corpora.

    Raises DataError when the corpus is not prepared there as the task says.
    """
    if isinstance(trial.task, SpamLang):
        return SpamLangData(trial, trial.task)
    return TextData(trial, trial.task, folder or data_folder())
