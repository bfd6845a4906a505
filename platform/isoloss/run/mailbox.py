"""The mailbox between a slot and its workers: one job at a time, delivered again when its workers die."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

MOST_DELIVERIES = 3
"""Times in a row that a trial is handed to workers that die without bringing it on, before it is given up as lost."""

STOP = "stop"

PAUSED = "paused"
"""State of a job that was stopped, its state saved, since the whole run is ending."""


@dataclass
class News:
    """What happened to the current job since the last look: new points of its curve, and its state if it ended."""

    points: list[dict[str, Any]] = field(default_factory=list)
    state: str | None = None
    reason: str = ""
    placement: str = ""
    """The placement group that the slot's workers hold, in hexadecimal."""
    node: str = ""
    """Where rank 0 runs."""
    deliveries: int = 0
    """Times that the job was handed to workers."""


class Mailbox:
    """Holds the job that a slot wants trained. Run as an asyncio Ray actor: each wait leaves it free to answer others.

    States of a job that ended: ``finished`` (its result is in the ledger), ``out_of_memory``, ``lost``, ``paused``.
    """

    def __init__(self) -> None:
        self._job: dict[str, Any] | None = None
        self._deliveries = self._in_vain = 0
        self._farthest = -1  # the last step of the job's curve that was ever reported
        self._stopping = self._pausing = False
        self._error = ""
        self._news = News()
        self._placement = self._node = ""
        self._changed = asyncio.Condition()

    async def put(self, job: dict[str, Any]) -> None:
        """Offer a job to the workers; called by the slot, one job at a time."""
        self._job, self._deliveries, self._in_vain, self._farthest = job, 0, 0, -1
        self._error, self._news = "", News()
        if self._pausing:
            await self._end(PAUSED, "")
        await self._wake()

    async def stop(self) -> None:
        """Tell the workers to leave once they are idle."""
        self._stopping = True
        await self._wake()

    async def pause(self) -> None:
        """Ask for the job to be stopped at a checkpoint, and hand out no other."""
        self._pausing = True
        if not self._deliveries:
            await self._end(PAUSED, "")
        await self._wake()

    async def pausing(self) -> bool:
        """Return True once a pause was asked for, and never before."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._pausing)
        return True

    async def placed(self, placement: str, node: str = "") -> None:
        """Take note of the placement group that the workers hold, and of the address of rank 0's node."""
        self._placement, self._node = placement, node

    async def next(self, timeout_s: float) -> dict[str, Any] | str | None:
        """Return the job, ``STOP``, or None when the job was given up; called by rank 0 when it is free.

        ``STOP`` also comes after ``timeout_s`` without a job: idle workers leave what they hold to others.
        Rank 0 asks only when it trains nothing, so a job that it asks for again was lost with its process.
        """
        await self._until(lambda: self._stopping or self._pausing or self._open(), timeout_s)
        if self._pausing:
            await self._end(PAUSED, "")
        if self._stopping or not self._open():
            return STOP
        if self._in_vain == MOST_DELIVERIES:
            reason = self._error or "its workers died without saying why"
            await self._end("lost", f"given up after {MOST_DELIVERIES} deliveries: {reason}")
            return None
        self._deliveries += 1
        self._in_vain += 1
        return self._job

    async def points(self, key: str, points: list[dict[str, Any]]) -> None:
        """Take new points of the curve of the job ``key``."""
        if self._job is not None and self._job["key"] == key:
            self._news.points += points
            if points and points[-1]["step"] > self._farthest:
                self._farthest, self._in_vain = points[-1]["step"], 0
            await self._wake()

    async def finished(self, key: str) -> None:
        """Take note that the result of ``key`` is in the ledger."""
        await self._end("finished", "", key)

    async def paused(self, key: str) -> None:
        """Take note that ``key`` was stopped and that what it needs to go on is in the ledger."""
        await self._end(PAUSED, "", key)

    async def failed(self, key: str, state: str, reason: str) -> None:
        """Take note of an error; out of memory ends the job, anything else lets it be delivered again."""
        self._error = reason
        if state == "out_of_memory":
            await self._end(state, reason, key)

    async def news(self, timeout_s: float) -> News:
        """Return and forget what happened, waiting up to ``timeout_s`` for something to happen; called by the slot."""
        await self._until(lambda: self._news.state is not None, timeout_s)
        news, self._news = self._news, News(state=self._news.state, reason=self._news.reason)
        news.placement, news.node, news.deliveries = self._placement, self._node, self._deliveries
        return news

    def _open(self) -> bool:
        return self._job is not None and self._news.state is None

    async def _end(self, state: str, reason: str, key: str | None = None) -> None:
        if self._open() and (key is None or (self._job or {})["key"] == key):
            self._news.state, self._news.reason = state, reason
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, condition: Any, timeout_s: float) -> None:
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(condition), timeout_s)
