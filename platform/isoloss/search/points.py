"""Points of the axes: from fractions between 0 and 1 to cells, and the Sobol or uniform sequence that covers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isoloss.config.base import canonical_json
from isoloss.config.search import Random
from isoloss.study import Study

MOST_DOUBLINGS = 6
"""Times that a search over a small discrete space doubles its draws, looking for new cells, before it stops."""


def random_cells(study: Study, search: Random) -> list[dict[str, Any]]:
    """Return ``search.cells`` different cells, fewer only when the axes do not have that many.

    Cell i is a pure function of the study's seed and i: raising ``cells`` keeps the earlier ones.
    """
    from scipy.stats import qmc

    if not study.axes:
        return [{}]
    seed = np.random.default_rng([study.seed, len(study.axes)])
    sobol = qmc.Sobol(len(study.axes), scramble=True, rng=seed) if search.sobol else None
    found: dict[str, dict[str, Any]] = {}
    first = (search.cells - 1).bit_length()
    for power in (first, *range(first, first + MOST_DOUBLINGS)):  # a Sobol sequence is balanced at powers of two
        for fractions in sobol.random(2**power) if sobol else seed.random((2**power, len(study.axes))):
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
