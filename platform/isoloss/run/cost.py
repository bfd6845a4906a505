"""What a trial will cost, from its size and, where there are finished trials, from what those took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isoloss.study import Trial


@dataclass(frozen=True)
class Speed:
    """Seconds that any update takes, and floating-point operations a second beyond that."""

    step_seconds: float
    flops_per_second: float
    measured: int = 0
    """How many finished trials it was fitted to; 0 for an assumption."""


ASSUMED = {"cpu": Speed(0.008, 2e10), "cuda": Speed(0.01, 1.5e14)}
"""One core of a 2020s server; one data-centre GPU in bfloat16. Assumptions until trials have been measured."""


def flops(trial: Trial) -> float:
    """Return the floating-point operations of a trial's training and of measuring its held-out loss."""
    measured = len(trial.evaluation.steps(trial.steps)) * trial.task.held_out_tokens(trial.evaluation.sequences)
    return trial.flops_per_token * trial.tokens(trial.steps) + trial.flops_per_token / 3 * measured


def seconds(trial: Trial, speed: Speed) -> float:
    """Return the predicted seconds of a trial on one worker."""
    return trial.steps * speed.step_seconds + flops(trial) / speed.flops_per_second


def fit(trials: Iterable[tuple[Trial, float]], device: str) -> Speed:
    """Return the speed that finished (trial, seconds) show, by least squares of relative errors; else the assumed."""
    pairs = [(trial, taken) for trial, taken in trials if taken > 0]
    if len(pairs) < 2:
        return ASSUMED[device]
    import numpy as np
    from scipy.optimize import nnls

    design = np.array([[trial.steps / taken, flops(trial) / taken] for trial, taken in pairs])
    scale = design.max(axis=0)
    (step, per_flop), _ = nnls(design / scale, np.ones(len(pairs)))
    return Speed(step / scale[0], float("inf") if per_flop == 0 else scale[1] / per_flop, len(pairs))
