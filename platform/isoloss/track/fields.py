"""What MLflow is told of a trial: the names and values of its params, tags and metrics; pure, without MLflow."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from isoloss.config.axes import Choice, Log
from isoloss.config.base import Part, canonical_json, plain, value_label
from isoloss.result import Result
from isoloss.run.ledger import Claim
from isoloss.study import Study, Trial

Point = tuple[str, int, float]
"""One metric value: name, step, value."""

POINTS = {
    "loss": "eval/loss",
    "train_loss": "train/loss",
    "gradient_norm": "train/gradient_norm",
    "learning_rate": "train/learning_rate",
    "nats_per_token": "eval/nats_per_token",
    "unigram_loss": "eval/unigram_loss",
    "suppressed": "probe/suppressed",
    "cosine": "probe/cosine",
    "gain": "probe/gain",
    "head_effective_rank": "probe/head_effective_rank",
    "head_entropy": "probe/head_entropy",
    "hidden_effective_rank": "probe/hidden_effective_rank",
    "anisotropy": "probe/anisotropy",
    "attention_logit": "probe/attention_logit",
    "log_z": "probe/log_z",
    "ideal_tail": "probe/ideal_tail",
    "update_cosine": "probe/update_cosine",
}
"""The metric that a column of a curve becomes; ``eval/excess`` is added from the loss, other columns are in its CSV."""

PROBES = tuple(name for name in POINTS.values() if name.startswith("probe/"))

CURVES = (
    *("eval/excess", "eval/loss", "eval/nats_per_token", "eval/unigram_loss"),
    *PROBES,
    *("train/gradient_norm", "train/learning_rate", "train/loss"),
)
"""Metrics with a value at every evaluation."""

FINALS = (
    "result/capped_excess", "result/draws_per_symbol", "result/final_excess", "result/final_loss",
    "result/initial_loss", "result/log10_capped_excess", "result/seconds", "result/standard_error", "result/tokens",
)  # fmt: skip
"""Metrics with one value, at step 0: MLflow draws bars only for those."""

LONGEST_PARAM = 6000
"""Characters that MLflow keeps of a param's value."""

EXCESS_SHOWN = 1e-6
"""Excess loss in nats below which ``result/log10_capped_excess`` tells no differences: it may be 0 or negative."""


@dataclass(frozen=True)
class Child:
    """A trial as MLflow is to hold it; ``numbers`` and ``facts`` are digests of what cannot and what can change."""

    name: str
    status: str
    start_ms: int
    end_ms: int | None
    params: dict[str, str]
    tags: dict[str, str]
    metrics: tuple[Point, ...] = ()
    curve_csv: str = ""
    numbers: str = field(init=False)
    facts: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", digest(self.metrics) if self.metrics else "none")
        object.__setattr__(self, "facts", digest([self.params, self.tags]))

    @property
    def published(self) -> str:
        """The text of the tag that says, once it is there, that all of the child was written."""
        return f"{self.numbers}.{self.facts}"


def digest(value: Any) -> str:
    """Return 12 hexadecimal digits that tell ``value``, of JSON types, from others."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def axis_name(study: Study, path: str) -> str:
    """Return the param name of an axis: its last segment, or the whole path where two axes end alike."""
    ends = Counter(axis.rpartition(".")[2] for axis in study.axes)
    last = path.rpartition(".")[2]
    return last if ends[last] == 1 and last not in ("seed", "replicate") else path.replace(".", "/")


def log_copy(study: Study, path: str) -> str:
    """Return the name of an axis's logarithm as a param, or an empty text where the axis is not one to plot so.

    MLflow's parallel, contour and scatter charts have no log axes. Whole numbers get log2, others log10.
    """
    axis = study.axes[path]
    if isinstance(axis, Log):
        ends: tuple[Any, ...] = tuple(study.cell({path: axis.low}).values())
    elif isinstance(axis, Choice) and all(is_number(value) for value in axis.values):
        ends = axis.values
        if min(ends) <= 0 or max(ends) < 2 * min(ends):
            return ""
    else:
        return ""
    base = "log2" if all(isinstance(value, int) for value in ends) else "log10"
    return f"{base}_{axis_name(study, path)}"


def plot_name(study: Study, path: str) -> str:
    """Return the param by which charts show an axis: its logarithm where it has one."""
    return log_copy(study, path) or axis_name(study, path)


def is_number(value: Any) -> bool:
    """Say whether ``value`` is a number, which True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def axes_params(study: Study, cell: Mapping[str, Any]) -> dict[str, str]:
    """Return the params of a cell: each axis by name, and its logarithm."""
    params: dict[str, str] = {}
    for path, value in cell.items():
        params[axis_name(study, path)] = text(value)
        copy = log_copy(study, path)
        if copy:
            params[copy] = f"{math.log2(value) if copy.startswith('log2') else math.log10(value):.6g}"
    return params


def trial_params(study: Study, cell: Mapping[str, Any], trial: Trial) -> dict[str, str]:
    """Return every param of a trial: its cell, the other fields as ``model/width``, and what follows from them."""
    params = axes_params(study, cell)
    for path, value in trial.leaves():
        if path not in cell:
            params[path.replace(".", "/")] = text(value)
    params["derived/steps"] = str(trial.steps)
    params["derived/batch_size"] = str(trial.batch_size)
    params["derived/parameters"] = str(trial.parameters)
    return params


def study_params(study: Study) -> dict[str, str]:
    """Return the params of a study: the space of its axes, and the fields that all its trials share."""
    params = {f"space/{path}": _space(axis) for path, axis in study.axes.items()}
    params["replicates"] = str(study.replicates)
    params["seed"] = str(study.seed)
    for part in ("task", "model", "head", "optimizer", "budget", "evaluation", "stop"):
        for path, value in getattr(study, part).leaves(f"{part}."):
            if path not in study.axes and part not in study.axes:
                params[path.replace(".", "/")] = text(value)
    return params


def _space(axis: Part) -> str:
    if not isinstance(axis, Choice):
        return axis.label
    values = ", ".join(value_label(value) for value in axis.values)
    # MLflow would cut it, and what comes back would look like another study's.
    return values if len(values) <= LONGEST_PARAM else f"{values[: LONGEST_PARAM - 1]}…"


def text(value: Any) -> str:
    """Return a param's value as text: numbers in full, parts by their label."""
    return value.label if isinstance(value, Part) else "none" if value is None else str(value)


def points(rows: Iterable[Mapping[str, Any]], floor: float) -> Iterator[Point]:
    """Yield the finite values of a curve's rows as metrics; the rest is left out, never sent."""
    for row in rows:
        step = int(row["step"])
        for column, name in POINTS.items():
            value = row.get(column)
            if value is not None and math.isfinite(value):
                yield name, step, float(value)
                if column == "loss":
                    yield "eval/excess", step, float(value) - floor


def curve_rows(result: Result) -> list[dict[str, Any]]:
    """Return a result's curve as rows, with the columns that live rows have too."""
    curve = result.curve
    columns = [curve.step, curve.loss, curve.standard_error, *result.series.values()]
    names = ("step", "loss", "standard_error", *result.series)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def finals(trial: Trial, result: Result) -> Iterator[Point]:
    """Yield the single numbers of a finished trial, at step 0."""
    curve = result.curve
    values: dict[str, Any] = {
        "capped_excess": curve.capped_excess,
        "draws_per_symbol": trial.draws_per_symbol(curve.step[-1]),
        "final_excess": curve.final_excess,
        "final_loss": curve.final_loss,
        "initial_loss": curve.initial_loss,
        "log10_capped_excess": math.log10(max(curve.capped_excess, EXCESS_SHOWN)),
        "seconds": result.machine.get("seconds"),
        "standard_error": curve.standard_error[-1],
        "tokens": trial.tokens(curve.step[-1]),
    }
    for name, value in values.items():
        if is_number(value) and math.isfinite(value):
            yield f"result/{name}", 0, float(value)


def curve_csv(rows: list[dict[str, Any]], floor: float) -> str:
    """Return the whole curve as CSV, which MLflow shows as a table."""
    out = io.StringIO()
    columns = dict.fromkeys(["step", "loss", "excess", *(name for row in rows for name in row)])
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "excess": row["loss"] - floor} for row in rows)
    return out.getvalue()


def unfinished_child(
    study: Study, claim: Claim, cell: Mapping[str, Any], trial: Trial, parent: str, status: str, state: str
) -> Child:
    """Return a trial without a result, in a state such as ``waiting`` or ``lost: node 3 went away``."""
    end_ms = claim.created_ms if status == "KILLED" else None
    tags = _tags(study, claim, cell, parent, state)
    return Child(_name(claim), status, claim.created_ms, end_ms, trial_params(study, cell, trial), tags)


def finished_child(
    study: Study, claim: Claim, cell: Mapping[str, Any], trial: Trial, parent: str, result: Result
) -> Child:
    """Return a trial with its result, judged by the study's verdict; a divergence is FINISHED like any other result."""
    curve, machine = result.curve, result.machine
    tags = {
        **{f"isoloss.{name}": _tag(value) for name, value in machine.items() if name != "seconds"},
        **_tags(study, claim, cell, parent, "finished"),
        "isoloss.outcome": str(study.verdict.judge(curve)),
        "isoloss.ended": curve.ended,
    }
    rows = curve_rows(result)
    seconds = machine.get("seconds", 0.0)
    return Child(
        name=_name(claim),
        status="FINISHED",
        start_ms=claim.created_ms,
        end_ms=claim.created_ms + round(1000 * seconds),
        params=trial_params(study, cell, trial),
        tags=tags,
        metrics=(*points(rows, curve.floor), *finals(trial, result)),
        curve_csv=curve_csv(rows, curve.floor),
    )


def trial_key(study: Study, key: str) -> str:
    """Return the value of the tag ``isoloss.key`` by which a trial's run is found again."""
    return f"{study.name}/{key}"


def _name(claim: Claim) -> str:
    return f"t{claim.number:04d}"


def _tags(study: Study, claim: Claim, cell: Mapping[str, Any], parent: str, state: str) -> dict[str, str]:
    return {
        "mlflow.parentRunId": parent,
        "isoloss.kind": "trial",
        **({"isoloss.note": claim.note} if claim.note else {}),
        "isoloss.key": trial_key(study, claim.key),
        "isoloss.cell": canonical_json(cell),
        "isoloss.state": state,
    }


def _tag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value))
