"""The state folder: where ledgers, reports and, by default, MLflow's database of a project are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isoloss.config.base import is_name
from isoloss.run.ledger import Ledger, LedgerError
from isoloss.study import Study


class State:
    """One state folder; ``tracking_uri`` is MLflow's, by default a SQLite file in the folder."""

    def __init__(self, folder: Path, tracking_uri: str = "") -> None:
        self.folder = folder.absolute()
        self.tracking_uri = tracking_uri or f"sqlite:///{self.folder / 'mlflow.db'}"

    def ledger(self, name: str) -> Ledger:
        """Return the ledger of the study of this name, which need not exist yet."""
        return Ledger(self.folder / "ledger" / name)

    def report(self, name: str) -> Path:
        """Return the folder of a study's report."""
        return self.folder / "reports" / name

    def find(self, study: str) -> tuple[Study, Ledger]:
        """Return the study that was run under a name or from a study file, as it was last defined, and its ledger.

        Raises LedgerError when it was never run here, StudyFileError when the file is no study.
        """
        if study.partition(":")[0].endswith(".py"):
            from isoloss.study_file import load_study

            definition = load_study(study)
            ledger = self.ledger(definition.name)
            if not ledger.exists():
                raise LedgerError(f"{study} was not run in {self.folder} yet; start it with `isoloss run {study}`")
            return definition, ledger
        known = [one.name for one, _ in self.studies()]
        if not is_name(study) or not self.ledger(study).exists():
            offer = f"there are {', '.join(known)}" if known else "no study was run there yet"
            raise LedgerError(f"no study {study!r} in {self.folder}; {offer}")
        ledger = self.ledger(study)
        return ledger.study(), ledger

    def studies(self) -> Iterator[tuple[Study, Ledger]]:
        """Yield every study of the folder with its ledger, by name."""
        for folder in sorted((self.folder / "ledger").glob("*/study.json")):
            ledger = Ledger(folder.parent)
            yield ledger.study(), ledger
