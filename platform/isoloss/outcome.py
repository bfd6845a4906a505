"""Outcomes: what a curve says of its trial, by rules that a study declares; pure, and so re-computable at any time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from isoloss.config.base import Part


class Outcome(StrEnum):
    """How a trial ended, judged from its curve alone. Losing a machine is not an outcome."""

    CONVERGED = "converged"
    UNDERTRAINED = "undertrained"
    PLATEAUED = "plateaued"
    DIVERGED = "diverged"
    NONFINITE = "nonfinite"


@dataclass(frozen=True)
class Curve:
    """The measured series of one trial: held-out loss in its task's unit, and its standard error, by step.

    ``ended`` says why training ended: ``"budget"``, ``"nonfinite"`` (a loss, gradient or weight was not finite; the
    series holds the finite part) or ``"above_initial"`` (the study's stopping rule).
    """

    step: tuple[int, ...]
    loss: tuple[float, ...]
    standard_error: tuple[float, ...]
    floor: float
    ended: Literal["budget", "nonfinite", "above_initial"] = "budget"

    @property
    def initial_loss(self) -> float:
        return self.loss[0]

    @property
    def final_loss(self) -> float:
        """The last finite held-out loss."""
        return self.loss[-1]

    @property
    def final_excess(self) -> float:
        """The last finite held-out loss above the task's floor."""
        return self.loss[-1] - self.floor

    @property
    def capped_excess(self) -> float:
        """Final excess, at most the initial one: what sensitivity and searches use, finite for every trial."""
        initial = self.initial_loss - self.floor
        return min(self.final_excess, initial) if self.ended == "budget" else initial


class Verdict(Part):
    """The thresholds by which a study judges its curves (in the task's unit, or shares of the progress made).

    In order: ``nonfinite`` if training met a non-finite number; ``converged`` if the final excess loss is at most
    ``converged_below``; ``diverged`` if the study's rule stopped it, if it ended above its initial loss, or if it
    gave back more than ``lost_progress`` of its best progress; ``undertrained`` if the last ``tail`` of its steps
    brought more than ``still_falling`` of all its progress; else ``plateaued``. Differences count only beyond two
    standard errors of the loss.
    """

    converged_below: Annotated[float, Field(gt=0)] = 0.05
    lost_progress: Annotated[float, Field(gt=0, le=1)] = 0.5
    tail: Annotated[float, Field(gt=0, lt=1)] = 0.3
    still_falling: Annotated[float, Field(gt=0, lt=1)] = 0.02

    def judge(self, curve: Curve) -> Outcome:
        """Return the outcome of ``curve``."""
        if curve.ended == "nonfinite":
            return Outcome.NONFINITE
        if curve.ended == "above_initial":
            return Outcome.DIVERGED
        if curve.final_excess <= self.converged_below:
            return Outcome.CONVERGED
        noise = 2 * math.hypot(curve.standard_error[0], curve.standard_error[-1])
        progress = curve.initial_loss - curve.final_loss
        if progress < -noise:
            return Outcome.DIVERGED
        best = min(range(len(curve.loss)), key=curve.loss.__getitem__)
        given_back = curve.final_loss - curve.loss[best]
        best_noise = 2 * math.hypot(curve.standard_error[best], curve.standard_error[-1])
        if given_back > best_noise and given_back > self.lost_progress * (curve.initial_loss - curve.loss[best]):
            return Outcome.DIVERGED
        fell = self._tail_loss(curve) - curve.final_loss
        if progress > noise and fell > self.still_falling * progress:
            return Outcome.UNDERTRAINED
        return Outcome.PLATEAUED

    def _tail_loss(self, curve: Curve) -> float:
        """The loss where the tail begins, between its two neighbours on the curve."""
        start = (1 - self.tail) * curve.step[-1]
        for i in range(1, len(curve.step)):
            if curve.step[i] >= start:
                share = (start - curve.step[i - 1]) / (curve.step[i] - curve.step[i - 1])
                return curve.loss[i - 1] + share * (curve.loss[i] - curve.loss[i - 1])
        return curve.loss[-1]
