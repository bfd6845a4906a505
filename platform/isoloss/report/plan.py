"""The plan of a study in numbers: cells, trials, tokens, parameters; predicted time, device-hours, memory and price."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table

from isoloss.config.base import canonical_json, value_label
from isoloss.config.search import Boundary, Optuna, Random
from isoloss.run.cost import START_SECONDS, TRIAL_SECONDS, Calibration, Costs, flops, hours_name, whole_budgets
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.study import Study, Trial

MOST_ROWS = 40


Sized = list[tuple[dict[str, Any], Trial]]
"""Cells and trials that cost the same."""


def plan_of(
    study: Study,
    ledger: Ledger,
    device: str,
    slots: int,
    calibration: Calibration | None = None,
    price: float | None = None,
) -> dict[str, Any]:
    """Return the plan's facts; where a search will choose the cells, as many Sobol points stand for them.

    A boundary search has at most so many ``trials``, which ``at_most`` says. ``hours`` are those in which the slots
    hold their devices, one each, and ``price`` is that of one.

    Raises ValueError when the study's search cannot be carried out.
    """
    total, trials = _trials(study)
    done = ledger.finished()
    finished = _finished(study, ledger, trials, done) if done else []
    costs = Costs(device, calibration)
    for trial, taken in whole_budgets(ledger, finished, device):
        costs.learn(trial, taken)
    at_most = isinstance(study.search, Boundary)
    sizes = _sizes(trials)
    groups = [_group(study, size, costs) for size in sizes]
    weights = [(size[0][1], len(size)) for size in sizes]
    whole = sum(group["slot_seconds"] for group in groups)
    left = max(0.0, whole - sum(costs.seconds(trial) + TRIAL_SECONDS for trial in finished)) if done else whole
    hours, hours_left = ((work + slots * START_SECONDS) / 3600 if work else 0.0 for work in (whole, left))
    return {
        "study": study.name,
        "cells": len({canonical_json(cell) for cell, _ in trials}) if at_most else len(trials) // study.replicates,
        "replicates": study.replicates,
        "trials": total,
        "at_most": at_most,
        "finished": len(finished),
        "tokens": sum(group["tokens"] for group in groups),
        "flops": sum(group["flops"] for group in groups),
        "parameters": _range(trial.parameters for trial, _ in weights),
        "draws_per_symbol": _range(trial.draws_per_symbol(trial.steps) for trial, _ in weights),
        "seconds_left": hours_left * 3600 / slots,
        "slots": slots,
        "hours_name": hours_name(device),
        "hours": hours,
        "hours_left": hours_left,
        "hours_spent": ledger.spent(device).hours,
        "price_an_hour": price,
        "price": None if price is None else hours * price,
        "price_left": None if price is None else hours_left * price,
        "memory_bytes": max(group["memory_bytes"] for group in groups),
        "process_bytes": None if calibration is None else calibration.process_bytes,
        "speed_from": costs.source,
        "fit_error": None if calibration is None else calibration.error,
        "groups": groups,
    }


def sizes_of(study: Study) -> list[tuple[Trial, int]]:
    """Return a trial of each size that a study has, and how many have it."""
    return [(size[0][1], len(size)) for size in _sizes(_trials(study)[1])]


def _trials(study: Study) -> tuple[int, Sized]:
    """Return how many trials a study has, and those that are listed or stand for them."""
    from isoloss.search.plan import listed_trials, plan

    if isinstance(study.search, (Boundary, Optuna)):
        total = plan(study).total
        return total, _stand_ins(study, study.search, total)
    trials = listed_trials(study)
    return len(trials), trials


def _finished(study: Study, ledger: Ledger, trials: Sized, done: set[str]) -> list[Trial]:
    if isinstance(study.search, (Boundary, Optuna)):
        return [trial for _, _, trial in members(study, ledger.claims()) if trial.key in done]
    return [trial for _, trial in trials if trial.key in done]


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
    spent = f"; {_hours(facts['hours_spent'])} spent so far" if facts["hours_spent"] else ""
    about.add_row(facts["hours_name"], f"{_hours(facts['hours'])} in all, {_hours(facts['hours_left'])} left{spent}")
    if facts["price"] is not None:
        each = f"at {facts['price_an_hour']:.2f} an hour"
        about.add_row("price", f"{facts['price']:.2f} {each}; {facts['price_left']:.2f} left")
    process = facts["process_bytes"]
    beside = f" a worker, beside the {_bytes(process)} of its process" if process else " a worker"
    about.add_row("peak memory", f"up to {_bytes(facts['memory_bytes'])}{beside}")
    groups = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    groups.add_column("cells", min_width=16)
    for name in ("trials", "updates", "draws", "params", "tokens", "FLOPs", "s/trial", "hours", "memory"):
        groups.add_column(name, justify="right", no_wrap=True)
    for group in facts["groups"][:MOST_ROWS]:
        groups.add_row(
            _cell(group["cell"]), f"{group['trials']:,}", f"{group['steps']}x{group['batch_size']}",
            f"{group['draws_per_symbol']:.3g}", _short(group["parameters"]), _short(group["tokens"]),
            f"{group['flops']:.0e}", _digits(group["seconds"]), _hours(group["hours"]), _bytes(group["memory_bytes"]),
        )  # fmt: skip
    hidden = len(facts["groups"]) - MOST_ROWS
    return Group(about, "", groups, f"… and {hidden} more groups" if hidden > 0 else "")


def _stand_ins(study: Study, search: Boundary | Optuna, total: int) -> Sized:
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


def _sizes(trials: Sized) -> list[Sized]:
    """Gather the trials that cost the same: all parts but the optimizer decide it, and a study shares equal parts."""
    sizes: dict[tuple[int, ...], Sized] = {}
    for cell, trial in trials:
        size = tuple(map(id, (trial.task, trial.model, trial.head, trial.budget, trial.evaluation)))
        sizes.setdefault(size, []).append((cell, trial))
    return list(sizes.values())


def _group(study: Study, size: Sized, costs: Costs) -> dict[str, Any]:
    """Return the facts of trials that cost the same; tokens, FLOPs and hours are of all of them together."""
    cell, trial = size[0]
    predicted = costs.seconds(trial)
    slot_seconds = (predicted + TRIAL_SECONDS) * len(size)
    return {
        "cell": {path: value_label(cell[path]) for path in study.axes if not path.startswith("optimizer")},
        "trials": len(size),
        "steps": trial.steps,
        "batch_size": trial.batch_size,
        "draws_per_symbol": trial.draws_per_symbol(trial.steps),
        "parameters": trial.parameters,
        "tokens": trial.tokens(trial.steps) * len(size),
        "flops": flops(trial) * len(size),
        "seconds": predicted,
        "slot_seconds": slot_seconds,
        "hours": slot_seconds / 3600,
        "memory_bytes": costs.memory_bytes(trial),
    }


def _cell(cell: dict[str, str]) -> str:
    return ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in cell.items()) or "all"


def _digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 10 else f"{hours:.2g}"


def _short(count: float) -> str:
    """Return a count in three digits, such as 92.3k and 2.05B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{max(size, 1e6) / 1e6:.0f} MB"


def _range(values: Iterable[float]) -> list[float]:
    found = list(values)
    return [min(found), max(found)]


def _duration(duration: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if duration >= 2 * size:
            return f"{duration / size:.1f} {unit}"
    return f"{duration:.0f} seconds"
