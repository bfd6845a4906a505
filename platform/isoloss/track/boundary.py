"""What MLflow is told of a boundary search on the study's run: the share expected to be wrong, and why it stopped."""

from __future__ import annotations

import contextlib

from isoloss.config.search import Boundary
from isoloss.run.ledger import Ledger
from isoloss.run.members import history
from isoloss.study import Study

REASON = "isoloss.boundary"
"""The tag that says why the search stopped: ``known``, ``limited by noise``, ``spent``; ``running`` until then."""


def boundary_fields(study: Study, ledger: Ledger) -> tuple[dict[str, float], dict[str, str]]:
    """Return metrics and tags of a boundary search; both empty for other searches.

    ``boundary/error_volume`` is left out where no map can be fitted.
    """
    search = study.search
    if not isinstance(search, Boundary) or not study.axes:
        return {}, {}
    # Optuna and scipy take a second to load: only these studies pay for them.
    from isoloss.search import boundary_plan
    from isoloss.search.boundary.map import BoundaryMap
    from isoloss.search.boundary.sampler import FIT_ERRORS

    claims = history(study, ledger)
    finished = [(cell, curve) for cell, curve, _ in claims if curve is not None]
    space = boundary_plan.space_of(study)
    metrics = {"boundary/trials": float(len(finished))}
    reason: str | None = None
    if finished:
        with contextlib.suppress(*FIT_ERRORS):
            known = BoundaryMap(space, boundary_plan.seen(study, space, finished))
            metrics["boundary/error_volume"] = known.error_volume
        with contextlib.suppress(*FIT_ERRORS):
            reason = boundary_plan.reason(study, search, space, boundary_plan.settled(claims))
    most = min(search.trials, space.size * study.replicates)
    if reason is None and len(finished) == len(claims) >= most:
        reason = "spent"
    return metrics, {REASON: reason or "running"}
