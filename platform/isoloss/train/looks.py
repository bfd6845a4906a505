"""When the workers of a trial look up together: what the first alone knows, saving and stopping, is done by all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from isoloss.train.workers import Workers

LOOK_SECONDS = 0.5
"""Time between two looks, which all workers wait for; longer where an update takes longer."""


class Decision(NamedTuple):
    save: bool
    stop: bool
    updates: int
    """After how many updates to look again."""


GO_ON = Decision(save=False, stop=False, updates=0)


class Looks:
    """Asks, on the first worker, whether to save and whether to stop, and lets all workers know in the same update.

    The first counts updates, not seconds, until the next look, as many as it expects in ``LOOK_SECONDS``, so that
    between looks nobody waits. A worker that is alone looks before every update.
    """

    def __init__(self, workers: Workers, checkpoint_seconds: float, stop: Callable[[], bool]) -> None:
        self.workers, self.checkpoint_seconds, self.stop = workers, checkpoint_seconds, stop
        self.updates = self.left = 0
        self.looked = self.saved = time.monotonic()

    def __call__(self) -> Decision:
        """Return what to do before the next update; call it before every one."""
        if self.left == 0:
            first = self.workers.rank == 0
            decision: Decision = self.workers.from_first(self._decide() if first else None)
            self.updates = self.left = decision.updates
        else:
            decision = GO_ON
        self.left -= 1
        return decision

    def has_saved(self) -> None:
        """Count the time until the next checkpoint from now on."""
        self.saved = time.monotonic()

    def _decide(self) -> Decision:
        now = time.monotonic()
        taken, self.looked = now - self.looked, now
        return Decision(now - self.saved >= self.checkpoint_seconds, self.stop(), self._next(taken))

    def _next(self, taken: float) -> int:
        if self.workers.count == 1:
            return 1
        # At most twice as many as before: one quick update says little of the next thousand.
        most = max(1, 2 * self.updates)
        seconds = min(LOOK_SECONDS, self.checkpoint_seconds)
        return max(1, min(most, int(self.updates * seconds / taken) if taken else most))
