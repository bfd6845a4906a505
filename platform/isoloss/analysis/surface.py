"""The surface of a study: outcome and excess loss of each cell over its replicates, and the planes it is seen on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from isoloss.analysis.table import axis_value
from isoloss.config.axes import Choice
from isoloss.config.search import Boundary, Grid
from isoloss.outcome import Outcome
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.study import Study

WAITING = ("pending", "given_up")
"""What a claimed trial without a result is: not finished yet, or given up because a machine lost it or ran out of
memory. Neither is an outcome."""


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame, by column name."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def scattered(study: Study, path: str) -> bool:
    """Say whether the trials lie anywhere along this axis, instead of at values that the study lists."""
    return not isinstance(study.search, Grid) and not isinstance(study.axes[path], Choice)


def waiting_table(study: Study, ledger: Ledger) -> pd.DataFrame:
    """Return the claimed trials that have no result: their cell, replicate, key and state (one of ``WAITING``)."""
    done, given_up = ledger.finished(), ledger.unfinished()
    rows = [
        {
            "key": trial.key,
            **{path: axis_value(value) for path, value in cell.items()},
            "replicate": trial.replicate,
            "state": "given_up" if trial.key in given_up else "pending",
        }
        for _, cell, trial in members(study, ledger.claims())
        if trial.key not in done
    ]
    return pd.DataFrame(rows, columns=["key", *study.axes, "replicate", "state"])


def surface_table(
    study: Study, table: pd.DataFrame, waiting: pd.DataFrame | None = None, axes: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return one row a cell, from the table of finished trials and the trials that wait for a result.

    Each outcome's column counts the replicates that ended so. ``outcome`` is the most frequent one, and of equally
    frequent ones the worst, so that a map never claims more convergence than was seen. ``median_excess``,
    ``lowest_excess`` and ``highest_excess`` are of the capped excess loss, in nats per scored token, over the
    replicates. ``missing`` counts replicates that nobody has claimed. A grid's cells are all present, finished or not.

    With ``axes``, only these tell cells apart: a row counts all trials that share their values, whatever the others.
    """
    paths = list(study.axes) if axes is None else list(axes)
    cells: dict[tuple[Hashable, ...], list[dict[str, Any]]] = {}
    if isinstance(study.search, Grid):
        cells = {tuple(axis_value(cell[path]) for path in paths): [] for cell in study.cells()}
    for frame in (table,) if waiting is None else (table, waiting):
        for record in records(frame):
            cells.setdefault(tuple(record[path] for path in paths), []).append(record)
    # A boundary search owes no cell all of its replicates.
    expected = 0 if axes is not None or isinstance(study.search, Boundary) else study.replicates
    rows = [{**dict(zip(paths, values, strict=True)), **_summary(found, expected)} for values, found in cells.items()]
    return pd.DataFrame(rows, columns=None if rows else [*paths, *_summary([], 0)])


def _summary(trials: list[dict[str, Any]], expected: int) -> dict[str, Any]:
    finished = [record for record in trials if "outcome" in record]
    counts = Counter(record["outcome"] for record in finished)
    states = Counter(record["state"] for record in trials if "outcome" not in record)
    excess = [record["capped_excess"] for record in finished]
    return {
        "outcome": majority(counts),
        "finished": len(finished),
        **{str(outcome): counts[outcome] for outcome in Outcome},
        **{state: states[state] for state in WAITING},
        "missing": max(0, expected - len(trials)),
        "median_excess": median(excess) if excess else float("nan"),
        "lowest_excess": min(excess, default=float("nan")),
        "highest_excess": max(excess, default=float("nan")),
        "keys": " ".join(record["key"] for record in finished),
    }


def majority(counts: Counter[str]) -> str | None:
    """Return the most frequent outcome, of equally frequent ones the worst; None when there is none."""
    worst_last = [str(outcome) for outcome in Outcome]
    return max(counts, key=lambda outcome: (counts[outcome], worst_last.index(outcome)), default=None)


@dataclass(frozen=True)
class Plane:
    """How a study is laid out on paper: one axis across, one down, and one panel for each combination of the others.

    ``across`` and ``down`` are None where the study has too few axes. ``points`` says that trials lie scattered, so
    that a map draws points; ``folded`` are scattered axes that no panel can hold fixed: its points are seen through
    them.
    """

    across: str | None
    down: str | None
    panels: tuple[str, ...]
    folded: tuple[str, ...]
    points: bool

    @classmethod
    def of(cls, study: Study) -> Plane:
        """Return the plane of the study's two map axes."""
        if not study.axes:
            return cls(None, None, (), (), points=False)
        across, down = study.map_axes
        others = [path for path in study.axes if path not in (across, down)]
        return cls(
            across,
            None if down == across else down,
            tuple(path for path in others if not scattered(study, path)),
            tuple(path for path in others if scattered(study, path)),
            points=any(scattered(study, path) for path in study.axes),
        )

    def split(self, study: Study, cells: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
        """Yield (values of the panel axes, its rows), in the order in which the study lists the values."""
        yield from split(study, cells, self.panels)


def split(study: Study, frame: pd.DataFrame, paths: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield (values of the axes ``paths``, the frame's rows there) for each combination that has rows, in order."""
    if not paths:
        yield {}, frame
        return
    path, *rest = paths
    for value in axis_values(study, path, frame):
        for values, rows in split(study, frame[frame[path] == value], tuple(rest)):
            yield {path: value, **values}, rows


def axis_values(study: Study, path: str, frame: pd.DataFrame) -> list[Any]:
    """Return the values that an axis takes in a frame: numbers rising, others in the order of their declaration."""
    found = frame[path].unique().tolist()
    if all(isinstance(value, (int, float)) for value in found):
        return sorted(found)
    axis = study.axes[path]
    assert isinstance(axis, Choice), f"{path!r} is a range of numbers"
    return [value for value in map(axis_value, axis.values) if value in found]
