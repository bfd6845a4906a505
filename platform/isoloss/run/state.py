"""The state folder: where ledgers, reports and, by default, MLflow's database of a project are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isoloss.config.base import is_name
from isoloss.run.ledger import Ledger
from isoloss.run.store import LedgerError, open_store
from isoloss.study import Study


class State:
    """One state folder; ``tracking_uri`` is MLflow's, by default a SQLite file in the folder.

    ``ledgers`` is where the ledgers are, a folder (by default ``ledger`` in the state folder) or a bucket's address.
    """

    def __init__(self, folder: Path, tracking_uri: str = "", ledgers: str = "") -> None:
        self.folder = folder.absolute()
        self.ledgers = ledgers.rstrip("/") or str(self.folder / "ledger")
        self.tracking_uri = tracking_uri or f"sqlite:///{self.folder / 'mlflow.db'}"

    def ledger(self, name: str) -> Ledger:
        """Return the ledger of the study of this name, which need not exist yet."""
        address, question, parameters = self.ledgers.partition("?")
        return Ledger(f"{address}/{name}{question}{parameters}")

    def report(self, name: str) -> Path:
        """Return the folder of a study's report."""
        return self.folder / "reports" / name

    def log(self, name: str) -> Path:
        """Return the file of the log of a study's trials."""
        return self.folder / "logs" / f"{name}.jsonl"

    def find(self, study: str) -> tuple[Study, Ledger]:
        """Return the study that was run under a name or from a study file, as it was last defined, and its ledger.

        Raises LedgerError when it was never run here, StudyFileError when the file is no study.
        """
        if study.partition(":")[0].endswith(".py"):
            from isoloss.study_file import load_study

            definition = load_study(study)
            ledger = self.ledger(definition.name)
            if not ledger.exists():
                raise LedgerError(f"{study} was not run in {self._place} yet; start it with `isoloss run {study}`")
            return definition, ledger
        if not is_name(study) or not self.ledger(study).exists():
            known = [one.name for one, _ in self.studies()]
            offer = f"there are {', '.join(known)}" if known else "no study was run there yet"
            raise LedgerError(f"no study {study!r} in {self._place}; {offer}")
        ledger = self.ledger(study)
        definition = ledger.study()
        if definition.name != study:  # its report and its place in MLflow would be another study's
            raise LedgerError(f"the ledger {ledger.root} holds the study {definition.name!r}; give it that name")
        return definition, ledger

    def studies(self) -> Iterator[tuple[Study, Ledger]]:
        """Yield every study of the folder with its ledger, by name."""
        for name in sorted(filter(is_name, open_store(self.ledgers).names(""))):
            ledger = self.ledger(name)
            if ledger.exists():
                yield ledger.study(), ledger

    @property
    def _place(self) -> str:
        """Where studies are looked for, in a message."""
        return str(self.folder) if self.ledgers == str(self.folder / "ledger") else self.ledgers
