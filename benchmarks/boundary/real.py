"""The real map of trainability that ``benchmarks/real_map.py`` trained, as a truth whose trials are looked up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution

TABLE = Path(__file__).parent.parent / "data" / "spamlang_map.parquet"
AXES = ("optimizer.learning_rate", "task.vocab_size")
SMALLEST = 1e-6
"""Excess losses below this (nats) are all told as this, as in a study's own search."""


class Real:
    """Every cell of a grid, with as many trials each as it has replicates, which take turns.

    A cell is inside where most of its replicates converged. The cost of a trial is its training's arithmetic.
    """

    def __init__(self, table: Path = TABLE) -> None:
        read = pq.read_table(table)
        study = json.loads((read.schema.metadata or {})[b"study"])
        threshold = float(study["verdict"]["converged_below"])
        self._trials: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for row in sorted(read.to_pylist(), key=lambda row: row["replicate"]):
            excess = math.log10(max(row["capped_excess"], SMALLEST) / threshold)
            if row["outcome"] in ("diverged", "nonfinite"):
                excess = math.inf
            self._trials.setdefault(tuple(row[axis] for axis in AXES), []).append((excess, row["flops"]))
        self.most_repeats: int | None = max(map(len, self._trials.values()))
        # As lists of numbers: the search may only ask for what was trained.
        self.distributions: dict[str, BaseDistribution] = {
            axis: CategoricalDistribution(sorted({cell[i] for cell in self._trials})) for i, axis in enumerate(AXES)
        }

    def inside(self, points: list[dict[str, Any]]) -> NDArray[np.bool_]:
        """Return whether most replicates converged at each point."""
        found = [self._trials[tuple(point[axis] for axis in AXES)] for point in points]
        return np.array([sum(excess <= 0 for excess, _ in one) > len(one) / 2 for one in found])

    def trial(self, point: dict[str, Any], earlier: int, rng: np.random.Generator) -> tuple[float, float]:
        """Return the excess and cost of the replicate whose turn it is after so many earlier trials of the cell."""
        of_cell = self._trials[tuple(point[axis] for axis in AXES)]
        return of_cell[earlier % len(of_cell)]
