"""What the workers of each slot hold in the cluster, and what is left of slots that died."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import ray
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

RECOVERY_SECONDS = 60.0
"""How long after a slot's death it is looked for what it held."""

LOOK_SECONDS = 10.0
"""Time between two looks for placement groups that no slot knows."""

ORPHAN_SECONDS = 120.0
"""How long a group that may be a dead slot's may hold resources before a worker in it says that it is not."""


class Placements:
    """Frees what dead slots held; Train does it through Ray's dashboard, and fails where two Rays share a host.

    A slot that dies before its workers run has told nobody what it holds. Such a group is known by elimination: it was
    there when the slot died, is this job's, has no name (Tune's have), holds its resources, and no worker reports it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of_slot: dict[str, str] = {}  # by the name of the slot's mailbox
        self._suspects: dict[str, float] = {}  # since when they hold resources
        self._died_at = self._looked_at = -math.inf

    def reported(self, mailbox: str, placement: str) -> None:
        """Take note of the placement group of a slot's workers, in hexadecimal."""
        self._of_slot[mailbox] = placement

    def slot_died(self) -> None:
        """Look for what a slot held, from now on for a while."""
        self._died_at = self._clock()
        self._suspects = {**dict.fromkeys(self._unknown(), math.inf), **self._suspects}

    def free(self) -> None:
        """Free what nobody uses; called several times a second."""
        now = self._clock()
        if now - self._died_at < RECOVERY_SECONDS:
            self._free_dead_slots()
        if self._suspects and now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._free_orphans(now)

    def _free_dead_slots(self) -> None:
        for mailbox, placement in list(self._of_slot.items()):
            try:
                ray.get_actor(mailbox)  # it dies with its slot
            except ValueError:
                _remove(placement)
                del self._of_slot[mailbox]

    def _free_orphans(self, now: float) -> None:
        unknown = self._unknown()
        self._suspects = {
            placement: min(since, now) if unknown[placement] == "CREATED" else math.inf
            for placement, since in self._suspects.items()
            if placement in unknown
        }
        for placement, since in self._suspects.items():
            if now - since >= ORPHAN_SECONDS:
                _remove(placement)

    def _unknown(self) -> dict[str, str]:
        """Return the states of this job's groups without a name that no worker has reported."""
        job, known = ray.get_runtime_context().get_job_id(), set(self._of_slot.values())
        return {
            placement: group["state"]
            for placement, group in placement_group_table().items()
            if placement.endswith(job) and not group["name"] and group["state"] != "REMOVED" and placement not in known
        }


def _remove(placement: str) -> None:
    remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(placement))))
