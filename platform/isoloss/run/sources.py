"""What stands in for training in a simulated study: a table of finished trials, or a function."""

from __future__ import annotations

import hashlib
import io
import math
import traceback
from collections.abc import Mapping
from itertools import product
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from isoloss.config.base import value_label
from isoloss.errors import UsageError
from isoloss.outcome import Curve, Outcome
from isoloss.search import parameters
from isoloss.search.boundary.space import Dimension
from isoloss.study import Cell, Study, Trial

if TYPE_CHECKING:
    import pandas as pd


class Replay(NamedTuple):
    """What a source says of a trial: its curve; its virtual seconds, or None for the cost model's; and how far away the
    cell that it stands for lies, in lengths of an axis."""

    curve: Curve
    seconds: float | None = None
    distance: float = 0.0


class Source(Protocol):
    """Answers in training's place, by its arguments alone; ``name`` tells sources apart, also by their content."""

    name: str

    def __call__(self, cell: Cell, trial: Trial) -> Replay: ...


def load_source(where: str, study: Study) -> Source:
    """Return the source at ``where``: a table (.parquet, .csv) or a function, as in ``path/to/file.py:function``.

    Raises UsageError when there is none, or when it does not fit the study.
    """
    file, _, function = where.partition(":") if ".py" in where else (where, "", "")
    path = Path(file)
    if path.suffix not in (".parquet", ".csv", ".py"):
        raise UsageError(f"a source is a table (.parquet or .csv) or path/to/file.py:function, not {where!r}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the source {path}: {error.strerror}") from None
    # The content is in the name: results of an edited source are never mixed with those of the earlier one.
    name = f"{path.name}{':' * bool(function)}{function}@{hashlib.sha256(data).hexdigest()[:8]}"
    return _Function(name, path, data, function) if path.suffix == ".py" else _Table(name, path, data, study)


class _Function:
    """A function of (cell, replicate) that returns the final excess loss in nats; inf and nan mean non-finite."""

    def __init__(self, name: str, path: Path, data: bytes, function: str) -> None:
        self.name, self.path = name, path
        space: dict[str, Any] = {"__name__": "isoloss_source", "__file__": str(path)}
        try:
            exec(compile(data, str(path), "exec"), space)
        except Exception as error:
            raise UsageError(self._explain(error)) from None
        self.function = space.get(function)
        if not callable(self.function):
            own = [key for key, value in space.items() if getattr(value, "__module__", "") == space["__name__"]]
            offer = ", ".join(f"{path}:{key}" for key in own) or "none"
            raise UsageError(f"{path} defines no function {function!r}; it has {offer}")

    def __call__(self, cell: Cell, trial: Trial) -> Replay:
        assert self.function is not None
        try:
            excess = self.function(dict(cell), trial.replicate)
        except Exception as error:
            raise UsageError(self._explain(error)) from None
        if not isinstance(excess, Real) or isinstance(excess, bool):
            raise UsageError(f"{self.name} must return an excess loss, a number, not {excess!r}")
        return Replay(_curve(trial, float(excess)))

    def _explain(self, error: Exception) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
        where = f"{self.path}, line {lines[-1]}" if lines else str(self.path)
        return " ".join(f"{where}: {type(error).__name__}: {error}".split())


NUMBERS = (
    *("final_excess", "capped_excess", "standard_error", "steps", "budget_steps", "seconds"),
    *("initial_loss", "initial_excess", "floor"),
)
"""Columns of a table that are read where they are there; an empty place is as good as no column."""

ENDS = ("budget", "nonfinite", "above_initial")


class _Table:
    """The rows of finished trials; a cell that has none is answered by the nearest one that has."""

    def __init__(self, name: str, path: Path, data: bytes, study: Study) -> None:
        self.name, self.axes = name, list(study.axes)
        rows = _read(path, data)
        self.excess = "final_excess" if "final_excess" in rows else "capped_excess"
        for column in (*self.axes, self.excess):
            if column not in rows:
                what = "an axis of the study" if column in self.axes else "nor 'final_excess'"
                raise UsageError(f"{name} has no column {column!r}, {what}; it has {', '.join(map(str, rows))}")
        dimensions = {path: Dimension.of(one) for path, one in parameters.distributions(study).items()}
        self.scales = {path: one for path, one in dimensions.items() if not one.unordered}
        self.labels = [path for path in self.axes if path not in self.scales]
        # By the values that must match, then by the place on the other axes, then by replicate.
        self.rows: dict[tuple[str, ...], dict[tuple[float, ...], dict[float, dict[str, Any]]]] = {}
        for row in rows.to_dict("records"):
            self._add({str(column): value for column, value in row.items()})
        for labels in product(*([_label(value) for value in study.listed(path) or ()] for path in self.labels)):
            if labels not in self.rows:
                wanted = ", ".join(f"{path} = {label}" for path, label in zip(self.labels, labels, strict=True))
                has = "; ".join(", ".join(found) for found in self.rows)
                raise UsageError(f"{name} has no row{' with ' * bool(wanted)}{wanted}; it has {has or 'none at all'}")
        self.places = {labels: np.array(list(found)) for labels, found in self.rows.items()}

    def _add(self, row: dict[str, Any]) -> None:
        row |= {column: self._number(row, column) for column in NUMBERS}
        for column in ("steps", "seconds"):
            if (row[column] or 0) < 0:
                raise UsageError(f"{self.name}: {column} must be 0 or more, not {row[column]:g}")
        row["ended"] = "budget" if _empty(row.get("ended")) else row["ended"]
        if row["ended"] not in ENDS:
            raise UsageError(f"{self.name}: ended must be one of {', '.join(ENDS)}, not {row['ended']!r}")
        labels = tuple(str(row[path]) for path in self.labels)
        replicates = self.rows.setdefault(labels, {}).setdefault(self._place(row), {})
        replicate = self._number(row, "replicate") if "replicate" in row else len(replicates)
        if replicate is None or replicate in replicates:
            cell = "".join(f"{path} = {row[path]}, " for path in self.axes)
            raise UsageError(f"{self.name} must have one row a cell and replicate, not two or an unnumbered one: {cell}"
                             f"replicate {'' if replicate is None else f'{replicate:g}'}")  # fmt: skip
        replicates[replicate] = row

    def _place(self, row: Cell) -> tuple[float, ...]:
        """Return the place of a cell or row on the ordered axes, each from 0 to 1 within the study's range."""
        place = []
        for path, scale in self.scales.items():
            value = self._number(row, path)
            if value is None or math.isinf(value) or (scale.log and value <= 0):
                accepted = "a finite number above 0" if scale.log else "a finite number"
                raise UsageError(f"{self.name}: {path} must be {accepted}, not {row[path]!r}")
            place.append(scale.encode(value))
        return tuple(place)

    def _number(self, row: Cell, column: str) -> float | None:
        value = row.get(column)
        try:
            return None if _empty(value) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise UsageError(f"{self.name}: {column} must be a number, not {value!r}") from None

    def __call__(self, cell: Cell, trial: Trial) -> Replay:
        labels = tuple(_label(cell[path]) for path in self.labels)
        distances = np.linalg.norm(self.places[labels] - np.array(self._place(cell)), axis=1)
        nearest = int(distances.argmin())
        replicates = list(self.rows[labels].values())[nearest]
        numbers = sorted(replicates)
        row = replicates[trial.replicate if trial.replicate in replicates else numbers[trial.replicate % len(numbers)]]
        excess = math.nan if row[self.excess] is None else row[self.excess]
        return Replay(_curve(trial, excess, row), row["seconds"], float(distances[nearest]))


def _curve(trial: Trial, excess: float, about: Mapping[str, Any] = MappingProxyType({})) -> Curve:
    """Return a curve that ends at ``excess`` above the floor, as a table's row ``about`` the trial says it did.

    A row's outcome shapes the middle, so that the verdict under which it was given gives it again; without one, the
    loss has settled by then. A trial that stopped early at an unknown step stopped half way.
    """
    floor = trial.task.floor if about.get("floor") is None else about["floor"]
    initial = about.get("initial_loss")
    if initial is None:
        above = about.get("initial_excess")
        uniform = math.log(trial.task.vocab_size) if trial.task.unit == "nats" else 8.0
        initial = uniform if above is None else floor + above
    ended = about.get("ended", "budget") if math.isfinite(excess) else "nonfinite"
    final = floor + excess if math.isfinite(excess) else initial
    last = trial.steps
    if ended != "budget":
        steps, of = about.get("steps"), about.get("budget_steps") or trial.steps
        last = min(round(trial.steps * (0.5 if steps is None else steps / of)), trial.steps)
    middle = final
    if about.get("outcome") == Outcome.UNDERTRAINED:
        middle = (initial + final) / 2
    elif about.get("outcome") == Outcome.DIVERGED:
        middle = min(floor, final)
    points = {0: initial, last // 2: middle, last: final} | {0: initial}
    errors = dict.fromkeys(points, 0.0) | {last: about.get("standard_error") or 0.0}
    return Curve(tuple(points), tuple(points.values()), tuple(errors.values()), floor, ended)  # type: ignore[arg-type]


def _read(path: Path, data: bytes) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(io.BytesIO(data))
        # Numbers come back to the last digit, and the label None stays one.
        empty = ["", "nan", "NaN"]
        return pd.read_csv(io.BytesIO(data), float_precision="round_trip", keep_default_na=False, na_values=empty)
    except (ValueError, pa.ArrowException) as error:
        raise UsageError(" ".join(f"cannot read the table {path}: {error}".split())) from None


def _label(value: Any) -> str:
    """Return a value as a report's table holds it, as text."""
    return str(value) if isinstance(value, (int, float)) else value_label(value)


def _empty(value: Any) -> bool:
    return value is None or value != value
