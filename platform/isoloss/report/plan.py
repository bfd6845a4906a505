"""The plan of a study in numbers: cells, trials, tokens, parameters and predicted time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table

from isoloss.config.base import canonical_json, value_label
from isoloss.config.search import Boundary, Optuna, Random
from isoloss.run.cost import Speed, fit, flops, seconds
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.study import Study, Trial

MOST_ROWS = 40


def plan_of(study: Study, ledger: Ledger, device: str, slots: int) -> dict[str, Any]:
    """Return the plan's facts; where a search will choose the cells, as many Sobol points stand for them.

    A boundary search has at most so many ``trials``, which ``at_most`` says.

    Raises ValueError when the study's search cannot be carried out.
    """
    from isoloss.search.plan import listed_trials, plan

    done = ledger.finished()
    if isinstance(study.search, (Boundary, Optuna)):
        total = plan(study).total
        trials = _stand_ins(study, study.search, total)
        finished = [trial for _, _, trial in members(study, ledger.claims()) if trial.key in done] if done else []
    else:
        trials = listed_trials(study)
        total = len(trials)
        finished = [trial for _, trial in trials if trial.key in done] if done else []
    speed = fit(((trial, ledger.result(trial.key).machine["seconds"]) for trial in finished), device)
    at_most = isinstance(study.search, Boundary)
    sizes = _sizes(trials)
    weights = [(size[0][1], len(size)) for size in sizes]
    spent = sum(seconds(trial, speed) for trial in finished)
    return {
        "study": study.name,
        "cells": len({canonical_json(cell) for cell, _ in trials}) if at_most else len(trials) // study.replicates,
        "replicates": study.replicates,
        "trials": total,
        "at_most": at_most,
        "finished": len(finished),
        "tokens": sum(trial.tokens(trial.steps) * count for trial, count in weights),
        "flops": sum(flops(trial) * count for trial, count in weights),
        "parameters": _range(trial.parameters for trial, _ in weights),
        "draws_per_symbol": _range(trial.draws_per_symbol(trial.steps) for trial, _ in weights),
        "seconds_left": max(0.0, sum(seconds(trial, speed) * count for trial, count in weights) - spent) / slots,
        "slots": slots,
        "speed_from": f"{speed.measured} finished trials" if speed.measured else f"an assumed {device}",
        "groups": [_group(study, size, speed) for size in sizes],
    }


def plan_text(study: Study, facts: dict[str, Any]) -> Group:
    """Return the plan as text for a terminal."""
    about = Table.grid(padding=(0, 2))
    low, high = facts["parameters"]
    fewest, most = facts["draws_per_symbol"]
    about.add_row("question", study.question)
    if facts["at_most"]:
        seeds = f", {facts['replicates']} replicates in turn" if facts["replicates"] > 1 else ""
        about.add_row("trials", f"at most {facts['trials']:,}{seeds}; counted below as so many even points of the axes")
    else:
        about.add_row("cells", f"{facts['cells']:,} x {facts['replicates']} replicates = {facts['trials']:,} trials")
    about.add_row("finished", f"{facts['finished']:,}")
    about.add_row("tokens", f"{facts['tokens']:,} scored, {facts['flops']:.3g} FLOPs")
    about.add_row("parameters", f"{low:,}" if low == high else f"{low:,} to {high:,}")
    about.add_row("draws per symbol", f"{fewest:.4g}" if fewest == most else f"{fewest:.4g} to {most:.4g}")
    left = f"about {_duration(facts['seconds_left'])} on {facts['slots']} slots, from {facts['speed_from']}"
    about.add_row("time left", f"at most {left}" if facts["at_most"] else left)
    groups = Table(box=None, padding=(0, 1), header_style="bold")
    groups.add_column("cells")
    for name in ("trials", "steps", "batch", "draws", "parameters", "s/trial"):
        groups.add_column(name, justify="right", no_wrap=True)
    for group in facts["groups"][:MOST_ROWS]:
        groups.add_row(
            _cell(group["cell"]), f"{group['trials']:,}", f"{group['steps']:,}", f"{group['batch_size']:,}",
            f"{group['draws_per_symbol']:.4g}", f"{group['parameters']:,}", _digits(group["seconds"]),
        )  # fmt: skip
    hidden = len(facts["groups"]) - MOST_ROWS
    return Group(about, "", groups, f"… and {hidden} more groups" if hidden > 0 else "")


def _stand_ins(study: Study, search: Boundary | Optuna, total: int) -> list[tuple[dict[str, Any], Trial]]:
    """Return trials at Sobol points; of a boundary search as many as it may have, whose replicates take turns."""
    from isoloss.search.points import random_cells

    cells = random_cells(study, Random(cells=total if isinstance(search, Boundary) else search.cells))
    turns = range(study.replicates)
    if isinstance(search, Boundary):
        each = (
            (cell, study.trial(cell, (i + turn) % study.replicates)) for turn in turns for i, cell in enumerate(cells)
        )
        return list(itertools.islice(each, total))
    return [(cell, study.trial(cell, replicate)) for replicate in turns for cell in cells]


def _sizes(trials: list[tuple[dict[str, Any], Trial]]) -> list[list[tuple[dict[str, Any], Trial]]]:
    """Gather the trials that cost the same: all parts but the optimizer decide it, and a study shares equal parts."""
    sizes: dict[tuple[int, ...], list[tuple[dict[str, Any], Trial]]] = {}
    for cell, trial in trials:
        size = tuple(map(id, (trial.task, trial.model, trial.head, trial.budget, trial.evaluation)))
        sizes.setdefault(size, []).append((cell, trial))
    return list(sizes.values())


def _group(study: Study, size: list[tuple[dict[str, Any], Trial]], speed: Speed) -> dict[str, Any]:
    cell, trial = size[0]
    return {
        "cell": {path: value_label(cell[path]) for path in study.axes if not path.startswith("optimizer")},
        "trials": len(size),
        "steps": trial.steps,
        "batch_size": trial.batch_size,
        "draws_per_symbol": trial.draws_per_symbol(trial.steps),
        "parameters": trial.parameters,
        "seconds": seconds(trial, speed),
    }


def _cell(cell: dict[str, str]) -> str:
    return ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in cell.items()) or "all"


def _digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _range(values: Iterable[float]) -> list[float]:
    found = list(values)
    return [min(found), max(found)]


def _duration(duration: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if duration >= 2 * size:
            return f"{duration / size:.1f} {unit}"
    return f"{duration:.0f} seconds"
