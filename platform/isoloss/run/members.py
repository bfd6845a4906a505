"""Which of a ledger's claims belong to a study as it is defined now: a study may change and be continued."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from isoloss.config.axes import Choice
from isoloss.config.search import Grid
from isoloss.outcome import Curve
from isoloss.run.ledger import Claim, Ledger
from isoloss.study import Study, Trial


def members(study: Study, claims: list[Claim]) -> Iterator[tuple[Claim, dict[str, Any], Trial]]:
    """Yield (claim, cell, trial) of each claim that the study, as it is defined now, would itself make.

    A claim from an earlier definition (another budget, a dropped axis value) belongs to no cell and is left out.
    """
    membership = Membership(study)
    for claim in claims:
        found = membership.find(claim)
        if found is not None:
            yield claim, *found


class Membership:
    """Tells the cell and the trial of a claim at a time; see ``members``."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def find(self, claim: Claim) -> tuple[dict[str, Any], Trial] | None:
        """Return cell and trial of a claim, None where the study would not make it."""
        return self._grid.get(claim.key) if isinstance(self._study.search, Grid) else _resolve(self._study, claim)

    @cached_property
    def _grid(self) -> dict[str, tuple[dict[str, Any], Trial]]:
        return {trial.key: (cell, trial) for cell, trial in self._study.trials()}


def history(study: Study, ledger: Ledger) -> list[tuple[dict[str, Any], Curve | None, bool]]:
    """Return (cell, curve or None, whether it was given up) of every claim of the study, in the order of claims."""
    done, given_up = ledger.finished(), ledger.unfinished()
    found = list(members(study, ledger.claims()))
    results = ledger.results([claim.key for claim, _, _ in found if claim.key in done])
    return [
        (cell, next(results).curve if claim.key in done else None, claim.key in given_up) for claim, cell, _ in found
    ]


def _resolve(study: Study, claim: Claim) -> tuple[dict[str, Any], Trial] | None:
    if list(claim.cell) != list(study.axes) or claim.replicate >= study.replicates:
        return None
    try:
        cell = study.cell(claim.cell)
        trial = study.trial(cell, claim.replicate)
    except (LookupError, ValueError):
        return None
    inside = all(_on_axis(study, path, value) for path, value in cell.items())
    return (cell, trial) if inside and trial.key == claim.key else None


def _on_axis(study: Study, path: str, value: Any) -> bool:
    listed, axis = study.listed(path), study.axes[path]
    if listed is not None or isinstance(axis, Choice):
        return value in (listed or ())
    return bool(axis.low <= value <= axis.high)
