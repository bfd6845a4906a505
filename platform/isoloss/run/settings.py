"""Settings of a run: how many slots, of how many workers, on what, and where its ledger and its map go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from isoloss.config.base import Part
from isoloss.errors import UsageError
from isoloss.train.settings import Settings

SLOT_CPUS = 0.05
"""What Ray reserves for a slot's own actor: more than nothing, since Tune refuses zero, and small enough to fit."""


class RunSettings(Part):
    """How a study is put on a cluster; none of it changes what the study asks.

    ``slots`` of None takes as many as the cluster has room for, while nodes come and go. ``placement`` says on which
    nodes the workers of one slot are: together as far as it goes (``pack``) or always (``strict-pack``), apart as far
    as it goes (``spread``) or always (``strict-spread``). ``wait_for_nodes`` is how many minutes an autoscaler may take
    to bring the first slot's nodes; 0 refuses at once what the present nodes cannot hold. ``isolation="fresh"`` starts
    new processes for every trial, for trials of many minutes; ``"shared"`` trains one after another in the same ones.
    """

    train: Settings = Settings()
    slots: Annotated[int, Field(ge=1)] | None = None
    workers_per_slot: Annotated[int, Field(ge=1)] = 1
    gpus_per_worker: Annotated[float, Field(gt=0)] = 1.0
    placement: Literal["pack", "spread", "strict-pack", "strict-spread"] = "pack"
    wait_for_nodes: Annotated[float, Field(ge=0)] = 0.0
    isolation: Literal["shared", "fresh"] = "shared"

    @field_validator("gpus_per_worker")
    @classmethod
    def _is_a_share(cls, gpus: float) -> float:
        if gpus > 1 and not gpus.is_integer():
            raise UsageError(
                f"gpus_per_worker: a worker has a share of one GPU, below 1, or a whole number of GPUs, not {gpus:g}"
            )
        return gpus

    @property
    def worker_resources(self) -> dict[str, float]:
        """What Ray reserves for one worker; a tenth of a CPU stays free for the slot's own actors."""
        if self.train.device == "cuda":
            return {"CPU": 0.9, "GPU": self.gpus_per_worker}
        return {"CPU": self.train.threads - 0.1}

    @property
    def placement_strategy(self) -> str:
        """The placement as Ray names it."""
        return self.placement.upper().replace("-", "_")
