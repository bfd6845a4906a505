"""A study: one declared question; and its trials, each a fully resolved configuration with a key."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from isoloss.config.axes import Axis, Choice
from isoloss.config.base import Name, Part, encode, messages, plain, replace
from isoloss.config.budgets import Budget
from isoloss.config.heads import Head
from isoloss.config.parts import AdamW, Decoder, Evaluation, Stop
from isoloss.config.search import Grid, Search
from isoloss.config.tasks import Task
from isoloss.outcome import Verdict

SCHEMA = 1
"""Version of the trial's canonical form. It is part of every key: raise it when a default or a meaning changes."""

Cell = Mapping[str, Any]
"""The value of each axis, by path."""


class Trial(Part):
    """One cell under one seed, fully resolved: all that its numbers depend on, and nothing else."""

    task: Task
    model: Decoder
    head: Head
    optimizer: AdamW
    budget: Budget
    evaluation: Evaluation = Evaluation()
    stop: Stop = Stop()
    seed: int = 0
    replicate: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Trial:
        self.head.check(self.task.vocab_size, self.model.width)
        self.task.check_held_out(self.evaluation.sequences)
        self.budget.resolve(self.task, self.flops_per_token)
        return self

    @cached_property
    def key(self) -> str:
        """The 16-digit hash of the canonical JSON, schema version included: the same on every machine."""
        text = encode({"schema": SCHEMA, **self.canonical})
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def _updates(self) -> tuple[int, int]:
        return self.budget.resolve(self.task, self.flops_per_token)

    @property
    def steps(self) -> int:
        """Updates of the whole budget."""
        return self._updates[0]

    @property
    def batch_size(self) -> int:
        """Sequences per update, over all workers."""
        return self._updates[1]

    def draws_per_symbol(self, steps: int) -> float:
        """Return the independent draws that each symbol gets on average in so many updates (Murugan 2026)."""
        return steps * self.batch_size * self.task.draws_per_sequence / self.task.vocab_size

    def tokens(self, steps: int) -> int:
        """Return the scored tokens of so many updates."""
        return steps * self.batch_size * self.task.positions

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        embedding = self.task.input_vocab_size * self.model.width
        return embedding + self.model.parameters + self.head.parameters(self.task.vocab_size, self.model.width)

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of training on one token: 6 a parameter (Kaplan et al. 2020), and attention.

        A head's parameters count as often as a token meets them. The embedding is a lookup and counts nothing;
        measuring a token costs a third of this.
        """
        task, model, head = self.task, self.model, self.head
        logits = head.multiplications(task.vocab_size, model.width)
        return 6.0 * (model.parameters + logits + 2 * model.depth * model.width * task.positions)

    def stream(self, *names: str | int) -> int:
        """Return the 64-bit seed of a named stream, which depends on seed and replicate alone: every cell shares it."""
        text = "/".join(str(name) for name in (self.seed, self.replicate, *names))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


PARTS = ("task", "model", "head", "optimizer", "budget", "evaluation", "stop")
"""The fields of a study that an axis may reach into."""


class Study(Part):
    """One declared question: what is trained, which fields vary, how often it is repeated, what counts as an answer.

    ``axes`` maps paths such as ``"head.rank"`` to the values they take; a path may name a whole part (``"head"``).
    Raises ValueError (pydantic's) when a path does not exist, a field refuses one of its axis's values, parts do not
    fit each other, or an axis changes nothing.
    """

    name: Name
    question: str
    task: Task
    model: Decoder
    head: Head
    optimizer: AdamW
    budget: Budget
    axes: Mapping[str, Axis]
    replicates: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    evaluation: Evaluation = Evaluation()
    stop: Stop = Stop()
    verdict: Verdict = Verdict()
    search: Search = Grid()
    map: tuple[str, str] | None = None
    kind: Literal["study"] = "study"

    @model_validator(mode="after")
    def _checked(self) -> Study:
        object.__setattr__(self, "axes", MappingProxyType({path: self._axis(path) for path in self.axes}))
        for one, other in itertools.permutations(self.axes, 2):
            if other.startswith(one + "."):
                raise ValueError(f"axes {one!r} and {other!r} both set {other!r}; keep one of them")
        if self.map is not None and (set(self.map) - set(self.axes) or self.map[0] == self.map[1]):
            raise ValueError(f"map must name two different axes of {', '.join(map(repr, self.axes))}; not {self.map}")
        self._check_corners()
        return self

    def _axis(self, path: str) -> Axis:
        """Return the axis with its values validated by the field that it varies."""
        axis = self.axes[path]
        part = path.partition(".")[0]
        if part not in PARTS:
            raise ValueError(
                f"axes: {path!r} is nothing that a trial trains with; a path starts with one of {', '.join(PARTS)}"
            )
        ends = axis.values if isinstance(axis, Choice) else (axis.low, axis.high)
        try:
            checked = tuple(self._value(path, value) for value in ends)
            if isinstance(axis, Choice):
                return Choice(*checked)
            if checked[0] == checked[1]:
                raise ValueError(f"rounded to whole numbers, the range is {checked[0]} alone and changes nothing")
            if isinstance(self.search, Grid):
                self._points(path, axis)
        except (LookupError, ValueError) as error:
            text = messages(error) if isinstance(error, ValidationError) else str(error.args[0])
            raise ValueError(f"axes: {path!r}: {text}") from None
        return axis

    def _value(self, path: str, value: Any) -> Any:
        """Return ``value`` as the field at ``path`` holds it; a range over whole numbers is rounded."""
        now: Any = self
        for name in path.split("."):
            now = getattr(now, name, None)
        if isinstance(value, float) and isinstance(now, int) and not isinstance(self.axes[path], Choice):
            value = round(value)
        changed: Any = replace(self._base, path, value)
        for name in path.split("."):
            changed = getattr(changed, name)
        return changed

    def listed(self, path: str) -> tuple[Any, ...] | None:
        """Return the values of an axis that lists them (a Choice, or a range with ``points``), else None."""
        axis = self.axes[path]
        return None if not isinstance(axis, Choice) and axis.points is None else self._points(path, axis)

    def _points(self, path: str, axis: Axis) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(self._value(path, value) for value in axis.grid()))

    @cached_property
    def _base(self) -> Part:
        return _Unchecked(**{name: getattr(self, name) for name in PARTS})

    def _check_corners(self) -> None:
        """Raise ValueError when parts do not fit each other at some combination of choices and range ends."""
        for _ in self.corners():
            pass

    def corners(self) -> Iterator[Trial]:
        """Yield the trial at every combination of choices and range ends, each for the first replicate."""
        ends = [
            axis.values if isinstance(axis, Choice) else (self._value(path, axis.low), self._value(path, axis.high))
            for path, axis in self.axes.items()
        ]
        for values in itertools.product(*ends):
            cell = dict(zip(self.axes, values, strict=True))
            try:
                yield self.trial(cell, 0)
            except ValidationError as error:
                where = ", ".join(f"{path} = {plain(value)}" for path, value in cell.items()) or "the study"
                raise ValueError(f"at {where}: {messages(error)}") from None

    def trial(self, cell: Cell, replicate: int) -> Trial:
        """Return the trial at ``cell`` for one replicate; raises ValueError when its parts do not fit each other."""
        changes: dict[str, dict[str, Any]] = {}
        for path, value in cell.items():
            changes.setdefault(path.partition(".")[0], {})[path] = value
        parts: dict[str, Any] = {name: self._part(name, tuple(changes.get(name, {}).items())) for name in PARTS}
        return Trial(**parts, seed=self.seed, replicate=replicate)

    def _part(self, name: str, changes: tuple[tuple[str, Any], ...]) -> Part:
        # Cells share most of their parts; validating each part once makes a study of 10,000 trials plan in a second.
        if (name, changes) not in self._parts:
            base = self._base
            for path, value in changes:
                base = replace(base, path, value)
            self._parts[name, changes] = getattr(base, name)
        return self._parts[name, changes]

    @cached_property
    def _parts(self) -> dict[tuple[str, tuple[tuple[str, Any], ...]], Part]:
        return {}

    def cell(self, values: Cell) -> dict[str, Any]:
        """Return ``values``, as read from JSON, as the fields hold them; raises ValueError for what they refuse."""
        return {path: self._value(path, value) for path, value in values.items()}

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield the grid's cells; raises ValueError when an axis is a range without ``points``."""
        points = [self._points(path, axis) for path, axis in self.axes.items()]
        for values in itertools.product(*points):
            yield dict(zip(self.axes, values, strict=True))

    def trials(self) -> Iterator[tuple[dict[str, Any], Trial]]:
        """Yield (cell, trial) over the grid, one replicate after another."""
        cells = list(self.cells())
        for replicate in range(self.replicates):
            for cell in cells:
                yield cell, self.trial(cell, replicate)

    @property
    def map_axes(self) -> tuple[str, str]:
        """The two axes of maps, (across, down): as declared, else the learning rate across and the first other down."""
        if self.map is not None:
            return self.map
        across = "optimizer.learning_rate" if "optimizer.learning_rate" in self.axes else list(self.axes)[-1]
        return across, next((path for path in self.axes if path != across), across)

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> Any:
        return Study.from_json, (self.to_json(),)

    def to_json(self) -> str:
        """Return the study as JSON, axes in their order, from which ``from_json`` rebuilds an equal study."""
        return json.dumps({"schema": SCHEMA, **self.canonical}, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Study:
        """Rebuild a study; raises ValueError when the text was written under another schema version."""
        fields = json.loads(text)
        schema = fields.pop("schema", None)
        if schema != SCHEMA:
            raise ValueError(f"the study was written under schema {schema}, and this isoloss reads schema {SCHEMA}")
        return cls.model_validate_json(json.dumps(fields))


class _Unchecked(Part):
    """The parts of a trial before they are checked against each other, so that axes may be set in any order."""

    task: Task
    model: Decoder
    head: Head
    optimizer: AdamW
    budget: Budget
    evaluation: Evaluation
    stop: Stop
