"""Tasks: what is learned, its floor and its batches, one module a task."""

from __future__ import annotations

from isoloss.study import Trial
from isoloss.tasks.base import Data
from isoloss.tasks.spamlang import SpamLangData


def load(trial: Trial) -> Data:
    """Return the data of a trial's task."""
    return SpamLangData(trial)
