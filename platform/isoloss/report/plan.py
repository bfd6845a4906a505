"""The plan of a study in numbers: cells, trials, tokens, parameters and predicted time."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table

from isoloss.config.base import value_label
from isoloss.config.search import Optuna, Random
from isoloss.run.cost import Speed, fit, flops, seconds
from isoloss.run.ledger import Ledger
from isoloss.study import Study, Trial

MOST_ROWS = 40


def plan_of(study: Study, ledger: Ledger, device: str, slots: int) -> dict[str, Any]:
    """Return the plan's facts; where Optuna will choose the cells, as many Sobol points stand for them.

    Raises ValueError when the study's search cannot be carried out.
    """
    from isoloss.search.plan import listed_trials, plan
    from isoloss.search.points import random_cells

    total = plan(study).total
    if isinstance(study.search, Optuna):
        cells = random_cells(study, Random(cells=study.search.cells))
        trials = [(cell, study.trial(cell, replicate)) for replicate in range(study.replicates) for cell in cells]
    else:
        trials = listed_trials(study)
    done = ledger.finished()
    speed = fit(((t, ledger.result(t.key).machine["seconds"]) for _, t in trials if t.key in done), device)
    left = [trial for _, trial in trials if trial.key not in done]
    return {
        "study": study.name,
        "cells": len({tuple(map(value_label, cell.values())) for cell, _ in trials}),
        "replicates": study.replicates,
        "trials": total,
        "finished": sum(trial.key in done for _, trial in trials),
        "tokens": sum(trial.tokens for _, trial in trials),
        "flops": sum(flops(trial) for _, trial in trials),
        "parameters": [min(t.parameters for _, t in trials), max(t.parameters for _, t in trials)],
        "draws_per_symbol": [min(t.draws_per_symbol for _, t in trials), max(t.draws_per_symbol for _, t in trials)],
        "seconds_left": sum(seconds(trial, speed) for trial in left) / slots,
        "slots": slots,
        "speed_from": f"{speed.measured} finished trials" if speed.measured else f"an assumed {device}",
        "groups": _groups(study, trials, speed),
    }


def plan_text(study: Study, facts: dict[str, Any]) -> Group:
    """Return the plan as text for a terminal."""
    about = Table.grid(padding=(0, 2))
    low, high = facts["parameters"]
    fewest, most = facts["draws_per_symbol"]
    about.add_row("question", study.question)
    about.add_row("cells", f"{facts['cells']:,} x {facts['replicates']} replicates = {facts['trials']:,} trials")
    about.add_row("finished", f"{facts['finished']:,}")
    about.add_row("tokens", f"{facts['tokens']:,} scored, {facts['flops']:.3g} FLOPs")
    about.add_row("parameters", f"{low:,}" if low == high else f"{low:,} to {high:,}")
    about.add_row("draws per symbol", f"{fewest:.4g}" if fewest == most else f"{fewest:.4g} to {most:.4g}")
    about.add_row(
        "time left", f"about {_duration(facts['seconds_left'])} on {facts['slots']} slots, from {facts['speed_from']}"
    )
    groups = Table(box=None, padding=(0, 2), header_style="bold")
    for name in (*facts["groups"][0]["cell"], "trials", "steps", "batch", "draws/symbol", "parameters", "s/trial"):
        groups.add_column(str(name).rpartition(".")[2], justify="right")
    for group in facts["groups"][:MOST_ROWS]:
        groups.add_row(
            *group["cell"].values(), f"{group['trials']:,}", f"{group['steps']:,}", f"{group['batch_size']:,}",
            f"{group['draws_per_symbol']:.4g}", f"{group['parameters']:,}", f"{group['seconds']:.2g}",
        )  # fmt: skip
    hidden = len(facts["groups"]) - MOST_ROWS
    return Group(about, "", groups, f"… and {hidden} more groups" if hidden > 0 else "")


def _groups(study: Study, trials: list[tuple[dict[str, Any], Trial]], speed: Speed) -> list[dict[str, Any]]:
    """One row for all trials of the same size: the axes that change what a trial costs, and what it costs."""
    sizes: dict[tuple[Any, ...], list[tuple[dict[str, Any], Trial]]] = {}
    for cell, trial in trials:
        size = (trial.steps, trial.batch_size, trial.parameters, trial.task.positions)
        sizes.setdefault(size, []).append((cell, trial))
    varying = [
        path
        for path in study.axes
        if any(len({value_label(cell[path]) for cell, _ in members}) == 1 for members in sizes.values())
        and len({value_label(cell[path]) for cell, _ in trials}) > 1
    ]
    rows = []
    for members in sizes.values():
        trial = members[0][1]
        labels = {path: list(dict.fromkeys(value_label(cell[path]) for cell, _ in members)) for path in varying}
        rows.append({
            "cell": {path: found[0] if len(found) == 1 else f"{len(found)} values" for path, found in labels.items()},
            "trials": len(members), "steps": trial.steps, "batch_size": trial.batch_size,
            "draws_per_symbol": trial.draws_per_symbol, "parameters": trial.parameters,
            "seconds": seconds(trial, speed),
        })  # fmt: skip
    return rows


def _duration(duration: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if duration >= 2 * size:
            return f"{duration / size:.1f} {unit}"
    return f"{duration:.0f} seconds"
