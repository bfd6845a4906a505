"""Points of the axes: from fractions between 0 and 1 to cells, and the Sobol or uniform sequence that covers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isoloss.config.base import canonical_json
from isoloss.config.search import Random
from isoloss.study import Study

MOST_DRAWS = 64
"""Draws per wanted cell before a search over a small discrete space stops looking for new ones."""


def random_cells(study: Study, search: Random) -> list[dict[str, Any]]:
    """Return ``search.cells`` different cells, fewer only when the axes do not have that many.

    Cell i is a pure function of the study's seed and i: raising ``cells`` keeps the earlier ones.
    """
    from scipy.stats import qmc

    if not study.axes:
        return [{}]
    seed = np.random.default_rng([study.seed, len(study.axes)])
    engine: qmc.QMCEngine | np.random.Generator
    engine = qmc.Sobol(len(study.axes), scramble=True, rng=seed) if search.sobol else seed
    found: dict[str, dict[str, Any]] = {}
    for _ in range(MOST_DRAWS):
        for fractions in engine.random((search.cells, len(study.axes)) if engine is seed else search.cells):
            cell = cell_at(study, fractions)
            found.setdefault(canonical_json(cell), cell)
            if len(found) == search.cells:
                return list(found.values())
    return list(found.values())


def cell_at(study: Study, fractions: Sequence[float]) -> dict[str, Any]:
    """Return the cell at the given fraction of each axis; an axis with listed values takes the one at that place."""
    cell = {}
    for (path, axis), fraction in zip(study.axes.items(), fractions, strict=True):
        listed = study.listed(path)
        if listed is not None:
            cell[path] = listed[min(int(fraction * len(listed)), len(listed) - 1)]
        else:
            cell[path] = float(f"{axis.at(fraction):.12g}")  # type: ignore[union-attr]
    return study.cell(cell)
