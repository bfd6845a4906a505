"""Batches, read ahead of their update by a thread, so that training never waits for data."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from isoloss.tasks.base import Batch

AHEAD = 3
"""Updates whose batches are read before they are needed."""


class Prefetch:
    """Reads the batches of updates ``step``, ``step`` + 1, … below ``steps``, in order; ``close`` ends its thread."""

    def __init__(self, read: Callable[[int], Batch], step: int, steps: int, device: torch.device) -> None:
        self._read, self._next, self._steps, self._device = read, step, steps, device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="isoloss-batches")
        self._waiting: list[Future[Batch]] = []

    def __next__(self) -> Batch:
        """Return the next batch, on its way to the device."""
        while len(self._waiting) < AHEAD and self._next < self._steps:
            self._waiting.append(self._thread.submit(self._ready, self._next))
            self._next += 1
        batch = self._waiting.pop(0).result()
        return Batch(*(tensor.to(self._device, non_blocking=True) for tensor in batch))

    def _ready(self, step: int) -> Batch:
        batch = self._read(step)
        if self._device.type != "cuda":
            return batch
        # Only from pinned memory does the copy to the device run beside the computation.
        return Batch(*(tensor.pin_memory() for tensor in batch))

    def close(self) -> None:
        """End the thread; batches that were read for nothing are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)
