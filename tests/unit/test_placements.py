"""What slots held is freed when they die, and what a dead slot told nobody of is found by elimination."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray import JobID, PlacementGroupID

from isoloss.run import placements as module
from isoloss.run.placements import LOOK_SECONDS, ORPHAN_SECONDS, RECOVERY_SECONDS, Placements

JOB, OTHER_JOB = JobID.from_int(7), JobID.from_int(8)


class Cluster:
    """Placement groups by name and state, the mailboxes that are alive, a clock, and what was freed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.groups: dict[str, tuple[str, str]] = {}
        self.mailboxes: set[str] = set()
        self.freed: list[str] = []
        self.now = 0.0
        self.placements = Placements(lambda: self.now)
        patch.setattr(module, "placement_group_table", self.table)
        patch.setattr(module, "_remove", self.freed.append)
        patch.setattr(module.ray, "get_actor", self.actor)
        patch.setattr(module.ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=JOB.hex))

    def table(self) -> dict[str, dict[str, Any]]:
        return {key: {"name": name, "state": state} for key, (name, state) in self.groups.items()}

    def actor(self, name: str) -> None:
        if name not in self.mailboxes:
            raise ValueError(name)

    def group(self, name: str = "", state: str = "CREATED", job: JobID = JOB) -> str:
        key: str = PlacementGroupID.of(job).hex()
        self.groups[key] = name, state
        return key

    def pass_time(self, seconds: float) -> list[str]:
        """Let time go by, a second at a time, and return what was freed."""
        self.freed.clear()
        for _ in range(round(seconds)):
            self.now += 1.0
            self.placements.free()
        return sorted(set(self.freed))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_dead_slot_frees_what_it_had_reported(cluster: Cluster) -> None:
    lost, kept = cluster.group(), cluster.group()
    cluster.mailboxes = {"a", "b"}
    cluster.placements.reported("a", lost)
    cluster.placements.reported("b", kept)
    assert cluster.pass_time(2 * ORPHAN_SECONDS) == []
    cluster.mailboxes = {"b"}
    cluster.placements.slot_died()
    assert cluster.pass_time(RECOVERY_SECONDS) == [lost]


def test_what_a_dead_slot_told_nobody_of_is_found_by_elimination(cluster: Cluster) -> None:
    orphan = cluster.group()
    cluster.group(name="__tune_x__")
    cluster.group(state="PENDING")
    cluster.group(state="REMOVED")
    cluster.group(job=OTHER_JOB)
    assert cluster.pass_time(2 * ORPHAN_SECONDS) == []  # as long as no slot dies, there are no orphans
    cluster.placements.slot_died()
    cluster.group()  # made later, so not the dead slot's
    assert cluster.pass_time(ORPHAN_SECONDS) == []
    assert cluster.pass_time(LOOK_SECONDS + 1) == [orphan]
    del cluster.groups[orphan]
    assert cluster.pass_time(2 * ORPHAN_SECONDS) == []


def test_workers_that_report_late_keep_their_group(cluster: Cluster) -> None:
    late = cluster.group()
    cluster.placements.slot_died()
    assert cluster.pass_time(ORPHAN_SECONDS - LOOK_SECONDS) == []
    cluster.mailboxes = {"a"}
    cluster.placements.reported("a", late)
    assert cluster.pass_time(2 * ORPHAN_SECONDS) == []


def test_time_counts_from_when_a_group_holds_resources(cluster: Cluster) -> None:
    orphan = cluster.group(state="PENDING")
    cluster.placements.slot_died()
    assert cluster.pass_time(2 * ORPHAN_SECONDS) == []
    cluster.groups[orphan] = "", "CREATED"
    assert cluster.pass_time(ORPHAN_SECONDS) == []
    assert cluster.pass_time(2 * LOOK_SECONDS) == [orphan]
