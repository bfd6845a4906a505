"""Settings of a run: how many slots, of how many workers, on what, and where its ledger and its map go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from isoloss.config.base import Part
from isoloss.train.settings import Settings


class RunSettings(Part):
    """How a study is put on a cluster; none of it changes what the study asks.

    ``slots`` of None takes as many as the cluster has room for. ``isolation="fresh"`` starts new processes for every
    trial, for trials of many minutes; ``"shared"`` trains one after another in the same ones.
    """

    train: Settings = Settings()
    slots: Annotated[int, Field(ge=1)] | None = None
    workers_per_slot: Annotated[int, Field(ge=1)] = 1
    gpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    isolation: Literal["shared", "fresh"] = "shared"

    @property
    def worker_resources(self) -> dict[str, float]:
        """What Ray reserves for one worker; a tenth of a CPU stays free for the slot's own actors."""
        if self.train.device == "cuda":
            return {"CPU": 0.9, "GPU": self.gpus_per_worker}
        return {"CPU": self.train.threads - 0.1}
