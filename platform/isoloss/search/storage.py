"""A study in an Optuna storage, for optuna-dashboard and Optuna's own analyses: a view, which no search reads."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial

from isoloss.errors import IsolossError, UsageError
from isoloss.outcome import Curve
from isoloss.search import parameters
from isoloss.search.sampler import SMALLEST
from isoloss.study import Study

DEFINITION, KEY = "isoloss:definition", "isoloss:key"

VALUE = "log10 of the capped excess loss"
"""The value of a trial: what Optuna's samplers are told, finite for every outcome."""


class StorageError(IsolossError):
    """The storage holds something that is not ours; the message says what."""


@dataclass(frozen=True)
class Ended:
    """A finished trial, as it is shown."""

    number: int
    key: str
    cell: Mapping[str, Any]
    replicate: int
    began_ms: int
    seconds: float
    curve: Curve


class StoredStudy:
    """The study of the same name in the storage at ``url``; written by one process at a time.

    A study that was stored under another definition is made anew, since finished trials cannot be changed there.
    Any call may raise what Optuna and SQLAlchemy raise; opening raises StorageError where the name belongs to another.
    """

    def __init__(self, study: Study, url: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = study
        self._distributions = parameters.distributions(study)
        self._optuna = self._open(optuna.storages.get_storage(url))
        self.keys = {str(trial.user_attrs.get(KEY)) for trial in self._optuna.get_trials(deepcopy=False)}

    def _open(self, storage: optuna.storages.BaseStorage) -> optuna.Study:
        name, definition = self._study.name, hashlib.sha256(self._study.to_json().encode()).hexdigest()
        stored = optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
        found = stored.user_attrs.get(DEFINITION)
        if found is None and stored.get_trials(deepcopy=False):
            raise StorageError(f"the study {name!r} there was not made by isoloss; name another storage")
        if found not in (None, definition):
            optuna.delete_study(study_name=name, storage=storage)
            stored = optuna.create_study(study_name=name, storage=storage)
        stored.set_user_attr("question", self._study.question)
        stored.set_user_attr("value", VALUE)
        stored.set_user_attr(DEFINITION, definition)  # the last, since it says that all of it is there
        return stored

    def add(self, ended: Ended) -> None:
        """Add a trial, whole or not at all; one that is there already stays as it is."""
        if ended.key not in self.keys:
            self._optuna.add_trial(self._trial(ended))
            self.keys.add(ended.key)

    def _trial(self, ended: Ended) -> optuna.trial.FrozenTrial:
        curve = ended.curve
        trial = create_trial(
            state=TrialState.COMPLETE,
            value=math.log10(max(curve.capped_excess, SMALLEST)),
            params=parameters.params(self._study, ended.cell),
            distributions=self._distributions,
            user_attrs={
                KEY: ended.key,
                "number": ended.number,
                "replicate": ended.replicate,
                "outcome": str(self._study.verdict.judge(curve)),
                "final loss": curve.final_loss,
                "seconds": ended.seconds,
            },
        )
        trial.datetime_start = datetime.fromtimestamp(ended.began_ms / 1000)
        trial.datetime_complete = trial.datetime_start + timedelta(seconds=ended.seconds)
        return trial


def check_storage(url: str) -> None:
    """Raise UsageError for a URL that names no database which Optuna could use; a server is not asked yet."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    like = "sqlite:///optuna.db or postgresql+psycopg2://user@host/database"
    try:
        made = make_url(url)
        made.get_dialect().import_dbapi()
    except ArgumentError as error:  # not shown as given: it may hold a password
        raise UsageError(f"--optuna-storage: {str(error).split(' from ')[0]}; give one such as {like}") from None
    except ImportError as error:
        raise UsageError(f"--optuna-storage: {made.drivername} needs another package: {error}") from None
