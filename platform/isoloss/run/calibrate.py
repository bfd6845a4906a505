"""Calibration: some cells of a study, each trained for a few updates in a process of its own, foretell all costs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from isoloss.errors import IsolossError
from isoloss.run.cost import (
    Calibration,
    Measured,
    activation_bytes,
    blocks,
    evaluation_flops,
    flops,
    size_of,
    update_flops,
)
from isoloss.study import Trial
from isoloss.train.settings import Settings
from isoloss.train.shares import micro_batches

CELL_SECONDS = 1.5
"""How long the updates of one cell are timed."""

FOLDER = "calibrations"
"""In the state folder: a file for each kind of machine and settings."""


class CalibrationError(IsolossError):
    """A cell cannot be measured here, or what was measured cannot be read; the message says why."""


def chosen(sizes: list[tuple[Trial, int]]) -> list[Trial]:
    """Return one trial of each size in the order in which to measure them, given how many trials have each.

    First the smallest, the largest and the middle one in FLOPs an update, which hold the fit; then those that cost most
    in all.
    """
    weights: dict[str, float] = {}
    trials: dict[str, Trial] = {}
    for trial, count in sizes:
        size = size_of(trial)
        trials.setdefault(size, trial)
        weights[size] = weights.get(size, 0.0) + flops(trial) * count
    ordered = sorted(trials, key=lambda size: update_flops(trials[size]))
    first = dict.fromkeys([ordered[0], ordered[-1], ordered[len(ordered) // 2]])
    rest = sorted((size for size in ordered if size not in first), key=lambda size: -weights[size])
    return [trials[size] for size in (*first, *rest)]


def calibrate(
    sizes: list[tuple[Trial, int]],
    settings: Settings,
    seconds: float,
    state: Path,
    say: Callable[[Measured], object] = lambda cell: None,
    clock: str = "wall",
) -> Calibration:
    """Measure as many of the sizes as ``seconds`` allow, at least two, and add them to what the state folder knows.

    ``say`` is called with each. ``clock="cpu"`` counts the CPU's seconds, on a machine that others use.
    Raises CalibrationError when a cell cannot be trained here, or the state folder cannot be written, and UsageError
    for micro-batches that a batch cannot be cut into.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise CalibrationError("calibration needs Linux, which tells the peak memory of a process")
    for trial, _ in sizes:
        micro_batches(trial, 1, settings.micro_batch)
    begun = time.monotonic()
    cells: dict[str, Measured] = {}
    longest = 0.0
    for trial in chosen(sizes):
        started = time.monotonic()
        if len(cells) >= 2 and started - begun + longest > seconds:
            break
        found = _measured_in_child(trial, settings, clock)
        cells[size_of(trial)] = _cell(trial, settings, found)
        say(cells[size_of(trial)])
        longest = max(longest, time.monotonic() - started)
    made = Calibration(
        _what_counts(settings), found["hardware"], found["torch"], f"{datetime.now():%-d %B %Y}",
        found["process_bytes"], tuple(cells.values()),
    )  # fmt: skip
    return _store(state / FOLDER, made)


def known(state: Path, settings: Settings) -> Calibration | None:
    """Return the latest calibration in the state folder that was made with such settings, or None.

    Raises CalibrationError when a file there cannot be read.
    """
    files = sorted((state / FOLDER).glob("*.json"), key=lambda file: file.stat().st_mtime)
    found = [one for one in map(_load, files) if one.settings == _what_counts(settings)]
    return found[-1] if found else None


def said(cell: Measured) -> str:
    """Return in words what was measured of a cell."""
    return f"{cell.name}: {1e3 * cell.update_seconds:.3g} ms an update, {cell.memory_bytes / 1e6:.3g} MB"


def _what_counts(settings: Settings) -> dict[str, Any]:
    return {**settings.arithmetic, "micro_batch": settings.micro_batch}


def _cell(trial: Trial, settings: Settings, found: dict[str, Any]) -> Measured:
    times = (found[name] for name in ("setup_seconds", "update_seconds", "evaluation_seconds", "memory_bytes"))
    name = f"{trial.head.label}, {trial.model.label}, vocab_size {trial.task.vocab_size}, batch {trial.batch_size}"
    activations = activation_bytes(trial, settings.device, settings.micro_batch)
    return Measured(
        name, size_of(trial), trial.parameters, blocks(trial), update_flops(trial), evaluation_flops(trial),
        activations, *times,
    )  # fmt: skip


def _measured_in_child(trial: Trial, settings: Settings, clock: str) -> dict[str, Any]:
    from isoloss.run.cluster import WORKER_ENVIRONMENT  # loads Ray, which nothing else here needs

    asked = {"trial": trial.model_dump_json(), "settings": settings.model_dump_json()}
    done = subprocess.run(
        [sys.executable, "-m", "isoloss.train.measure"],
        input=json.dumps({**asked, "seconds": CELL_SECONDS, "clock": clock}),
        capture_output=True,
        text=True,
        env={**os.environ, **WORKER_ENVIRONMENT, "OMP_NUM_THREADS": str(settings.threads)},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1]
        raise CalibrationError(
            f"a trial with {trial.parameters:,} parameters and batches of {trial.batch_size} cannot be trained on "
            f"{settings.device} here: {reason}"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _store(folder: Path, made: Calibration) -> Calibration:
    """Write a calibration, with the cells that were measured before under the same torch; return it with them."""
    kind = "-".join(f"{name}-{value}" for name, value in made.settings.items() if value not in (False, None))
    file = folder / f"{re.sub('[^a-z0-9]+', '-', f'{kind}-on-{made.hardware}'.lower())}.json"
    if file.exists() and (before := _load(file)).torch == made.torch:
        new = {cell.size for cell in made.cells}
        kept = tuple(cell for cell in before.cells if cell.size not in new)
        made = replace(made, cells=(*kept, *made.cells))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(made), indent=1))
        temporary.replace(file)
    except OSError as error:
        raise CalibrationError(f"cannot write {file}: {error}") from None
    return made


def _load(file: Path) -> Calibration:
    try:
        fields = json.loads(file.read_text())
        return Calibration(**{**fields, "cells": tuple(Measured(**cell) for cell in fields["cells"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CalibrationError(f"{file} is no calibration that this isoloss reads ({error}); delete it") from None
