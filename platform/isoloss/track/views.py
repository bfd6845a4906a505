"""Saved views: how MLflow's own pages open on a study, ready to compare; and the note that explains them.

A saved view is an experiment tag ``mlflow.sharedViewState.<key>`` (MLflow 3.15 and later). Its format is not
documented, so a browser test opens these against the MLflow that is installed.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

from isoloss.config.axes import Choice
from isoloss.config.base import value_label
from isoloss.study import Study
from isoloss.track.fields import CURVES, FINALS, axis_name, is_number, log_copy, plot_name

VIEW_TAG = "mlflow.sharedViewState."
COLOUR = "result/log10_capped_excess"
"""What maps are coloured by: excess losses spread over decades, and MLflow's colours have no logarithm."""

SECTION = "isoloss"


@dataclass(frozen=True)
class View:
    """One saved view: the key in its link, the name in MLflow's menu, whether it shows charts, and its state."""

    key: str
    name: str
    charts: bool
    state: dict[str, Any]

    def tag(self, created_ms: int) -> str:
        """Return the value of the experiment tag that holds the view."""
        data = zlib.compress(json.dumps(self.state, sort_keys=True).encode())
        state = f"deflate;{base64.b64encode(data).decode()}"
        return json.dumps({"name": self.name, "createdAt": created_ms, "updatedAt": created_ms, "state": state})


def views(study: Study) -> tuple[View, ...]:
    """Return the views of a study: compare (parallel, contour, scatter), curves, table."""
    across, down = study.map_axes
    return (
        View("isoloss-compare", "isoloss: compare trials", True, _charts(study, _compare_cards(study, across, down))),
        View("isoloss-curves", "isoloss: curves", True, _charts(study, _curve_cards(study))),
        View("isoloss-table", "isoloss: table", False, _state(study)),
    )


def fragment(experiment_id: str, view: View) -> str:
    """Return the part of a link, after the server's address, that opens a view.

    Without ``workflowType`` MLflow opens its page for language-model traces instead.
    """
    mode = "&compareRunsMode=CHART" if view.charts else ""
    return f"/#/experiments/{experiment_id}/runs?workflowType=machine_learning{mode}&viewStateShareKey={view.key}"


def run_fragment(experiment_id: str, run_id: str) -> str:
    """Return the part of a link, after the server's address, that opens a run."""
    return f"/#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def note(study: Study, experiment_id: str) -> str:
    """Return the experiment's description in Markdown: the question, the axes, how to read the views."""
    axes = "\n".join(
        f"| `{axis_name(study, path)}` | `{path}` | {_range(axis)} | {log_copy(study, path) or '—'} |"
        for path, axis in study.axes.items()
    )
    floor = "the task's floor" if study.task.floor_known else "0, since nobody knows the floor"
    links = "\n".join(f"- [{view.name}]({fragment(experiment_id, view)[1:]})" for view in views(study))
    return f"""# {study.name}

{_shown(study.question)}

{links}

| param | field | values | for charts |
|---|---|---|---|
{axes}

Each run below the study's run is one trial: one cell of the axes under one of {study.replicates} replicates.
`result/*` are its final numbers, `eval/*` its held-out curve, `train/*` what was measured between evaluations,
`probe/*` what its probes found; losses are in {study.task.unit_in_full}, and excess is loss above {floor}. Charts are
coloured by `{COLOUR}`, of which less is better. The tag `isoloss.outcome` is converged, undertrained, plateaued,
diverged or nonfinite; a diverged trial is a result, and its run is FINISHED. KILLED is a trial that a machine lost,
SCHEDULED one that the next run will train.
Maps, boundaries and their uncertainty are artifacts of the study's run.

This page is written from the study's ledger and is rebuilt by `isoloss publish`.
"""


def _shown(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", html.escape(text, quote=False))


def _range(axis: Any) -> str:
    if isinstance(axis, Choice):
        return ", ".join(value_label(value) for value in axis.values).replace("|", "\\|")
    grid = f", {axis.points} points" if axis.points else ""
    return f"{value_label(axis.low)} to {value_label(axis.high)} ({axis.kind}{grid})"


def _state(study: Study) -> dict[str, Any]:
    columns = [
        "tags.`isoloss.outcome`",
        *(f"params.`{axis_name(study, path)}`" for path in study.axes),
        "params.`replicate`",
        "metrics.`result/final_excess`",
        "metrics.`result/standard_error`",
        "metrics.`result/initial_loss`",
        "metrics.`result/draws_per_symbol`",
        "metrics.`result/seconds`",
        "tags.`isoloss.state`",
    ]
    return {
        "searchFilter": "tags.`isoloss.kind` = 'trial'",
        "orderByKey": "metrics.`result/final_excess`",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "columnOrder": ["attributes.`Run Name`", *columns, "attributes.`Created`", "attributes.`Duration`"],
        "columnWidths": {"attributes.`Run Name`": 110},
        "runsHiddenMode": "SHOW_ALL",
        "groupBy": None,
        "hideEmptyCharts": False,
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,
    }


def _charts(study: Study, cards: list[dict[str, Any]]) -> dict[str, Any]:
    # MLflow adds a chart for every metric that no card mentions, so the rest is mentioned as deleted.
    named = {card.get("metricKey") for card in cards}
    unwanted = [
        {"type": "BAR", "uuid": f"isoloss-hidden-{metric}", "metricSectionId": SECTION, "metricKey": metric,
         "isGenerated": True, "deleted": True, "runsCountToCompare": 10}
        for metric in (*CURVES, *FINALS) if metric not in named
    ]  # fmt: skip
    sections = [{"uuid": SECTION, "name": study.name, "display": True, "isReordered": True, "deleted": False,
                 "isGenerated": False, "columns": 2, "cardHeight": 380}]  # fmt: skip
    return {**_state(study), "compareRunCharts": cards + unwanted, "compareRunSections": sections}


def _card(kind: str, title: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "uuid": f"isoloss-{title}", "displayName": title, "metricSectionId": SECTION,
            "isGenerated": False, "deleted": False, "runsCountToCompare": 1000, **fields}  # fmt: skip


def _axis(name: str, kind: str = "PARAM") -> dict[str, str]:
    return {"key": name, "type": kind}


def _compare_cards(study: Study, across: str, down: str) -> list[dict[str, Any]]:
    params = [plot_name(study, path) for path in study.axes]
    cards = [
        _card("PARALLEL", "All axes", selectedParams=params, selectedMetrics=[COLOUR], showAllRuns=True),
    ]
    x, y = plot_name(study, across), plot_name(study, down)
    if x != y and _numeric(study, across) and _numeric(study, down):
        cards.append(_card("CONTOUR", "Map", xaxis=_axis(x), yaxis=_axis(y), zaxis=_axis(COLOUR, "METRIC")))
    for path in study.axes:
        name = plot_name(study, path)
        cards.append(_card("SCATTER", f"Excess by {name}", xaxis=_axis(name), yaxis=_axis(COLOUR, "METRIC")))
    return cards


def _numeric(study: Study, path: str) -> bool:
    axis = study.axes[path]
    return not isinstance(axis, Choice) or all(is_number(value) for value in axis.values)


def _curve_cards(study: Study) -> list[dict[str, Any]]:
    shown = ["eval/excess", "train/loss", "train/gradient_norm", "train/learning_rate"]
    probes = study.evaluation.probes
    if probes is not None:
        shown += ["probe/suppressed", "probe/gain"] if probes.survival else []
        shown += ["probe/head_effective_rank", "probe/hidden_effective_rank"] if probes.spectra else []
        shown += ["probe/attention_logit"] if probes.stability else []
        shown += ["probe/update_cosine"] if probes.updates else []
    linear = ("probe/suppressed", "probe/update_cosine")
    return [
        _card("LINE", metric, metricKey=metric, selectedMetricKeys=[metric], xAxisScaleType="log",
              scaleType="linear" if metric in linear else "log",
              xAxisKey="step", lineSmoothness=0, useGlobalXaxisKey=False, useGlobalLineSmoothing=False)
        for metric in shown
    ]  # fmt: skip
