"""What comes next in a study; and, usable without the rest of isoloss, an Optuna sampler that finds boundaries."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoloss.search.boundary.band import Band as Band
    from isoloss.search.boundary.band import End as End
    from isoloss.search.boundary.band import band as band
    from isoloss.search.boundary.map import BoundaryMap as BoundaryMap
    from isoloss.search.boundary.sampler import BoundarySampler as BoundarySampler

_MODULE_OF = {"Band": "band", "End": "band", "band": "band", "BoundaryMap": "map", "BoundarySampler": "sampler"}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    # Names load on first use, so that studies and commands that search nothing do not load Optuna and scipy.
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'isoloss.search' has no attribute {name!r}")
    return getattr(importlib.import_module(f"isoloss.search.boundary.{_MODULE_OF[name]}"), name)
