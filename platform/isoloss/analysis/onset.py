"""Saturation: from which step a held-out loss no longer follows its own power law, and when the spectra turn."""

# N evaluations, R shapes of a fall beside the power law

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from isoloss.analysis.onset_model import FEWEST_POINTS, Floats, OnsetModel, Posterior
from isoloss.analysis.surface import records
from isoloss.outcome import Curve
from isoloss.result import Result
from isoloss.study import Study, Trial

TURNS = {"head_entropy": 1, "hidden_entropy": 1, "anisotropy": -1}
"""Series that turn when a head degenerates: at their maximum (1) or their minimum (-1)."""

COLUMNS = (
    *("probability", "onset_step", "low", "high", "onset_tokens", "kind"),
    *(f"{name}_turns" for name in TURNS),
)
"""The columns of ``onset_table`` beside axes, replicate and key."""

DEFINITION = (
    "Probability is the posterior probability, 0.25 before the curve is seen, that the held-out loss after warm-up "
    "leaves its own earlier power law E + A t^-a, which may level off at E and falls faster while the learning rate "
    "decays, at some step from which it flattens (to at most a quarter of its slope over ln t) or rises (saturation: "
    "Godey et al. 2024). Onset is the posterior median of that step and low to high its 95 % credible interval, given "
    "where the probability exceeds a half; kind is the more probable of the two. A spectral series turns where it has "
    "its most prominent maximum after warm-up (entropy of the singular values of the head, or of the hidden states, in "
    "nats) or minimum (anisotropy, the mean cosine of two hidden states), if it stands out on both sides by more than "
    "five times the noise between neighbouring evaluations."
)

LAGS = (0.0, 0.03, 0.2, math.inf)
"""How long the loss takes to follow a decay of the learning rate, as shares of the budget."""

EARLY = (1.5, 4.0)
"""Exponents of a steeper power law that may fade out at the beginning."""

MOST_SAMPLES = 10_000
"""The schedule is read at so many even steps, or at all."""

PROMINENCE = 5.0

UNKNOWN = dict.fromkeys(("onset_step", "low", "high"), math.nan)

AT_ONCE = 8
"""Curves of one model that are looked at together: their hypotheses fill the processor's cache."""


MOST_POINTS = 64
"""Evaluations looked at of one curve: more tell little, and take long."""


class Schedule(Hashable, Protocol):
    """What is read of a learning-rate schedule."""

    @property
    def warmup(self) -> float:
        """The share of the steps that warm-up takes."""

    def factor(self, step: int, steps: int) -> float:
        """Return the multiple of the learning rate for one update."""


def onset_table(study: Study, trials: pd.DataFrame, result_of: Callable[[str], Result]) -> pd.DataFrame:
    """Return one row a trial: whether and when its loss saturates, and when its spectra turn (``DEFINITION``).

    Steps are fractions between evaluations, tokens scored ones. ``kind`` is ``flattens``, ``rises``, ``none`` where the
    probability is at most a half, and ``unknown``, with NaN, where fewer than eight evaluations lie in the window, or
    the loss is one number there. The window begins after warm-up. Where the task's floor is known, it ends when the
    excess loss stays below the verdict's ``converged_below``: a loss that flattens there has learned all there is.
    """
    read = [(record, result_of(record["key"])) for record in records(trials)]
    trained = [Trial.model_validate_json(json.dumps(result.trial)) for _, result in read]
    windows = [_of_trial(study, trial, result.curve) for trial, (_, result) in zip(trained, read, strict=True)]
    rows = [
        {
            **{path: record[path] for path in study.axes},
            "replicate": record["replicate"],
            "key": record["key"],
            **found,
            "onset_tokens": found["onset_step"] * trial.tokens(1),
            **_turns(trial, result),
        }
        for (record, result), trial, found in zip(read, trained, _onsets(windows), strict=True)
    ]
    return pd.DataFrame(rows, columns=[*study.axes, "replicate", "key", *COLUMNS])


def _of_trial(study: Study, trial: Trial, curve: Curve) -> _Window | None:
    end = _unconverged(curve, study.verdict.converged_below) if trial.task.floor_known else len(curve.step)
    return _window(_first(curve, end), trial.optimizer.schedule, trial.steps)


def _turns(trial: Trial, result: Result) -> dict[str, float]:
    after = trial.optimizer.schedule.warmup * trial.steps
    return {
        f"{name}_turns": turn(result.curve.step, result.series.get(name, ()), sign, after)
        for name, sign in TURNS.items()
    }


def _unconverged(curve: Curve, below: float) -> int:
    """Return how many evaluations there are until the excess loss stays at most ``below``."""
    return max((i + 1 for i, loss in enumerate(curve.loss) if loss - curve.floor > below), default=0)


def _first(curve: Curve, count: int) -> Curve:
    return Curve(curve.step[:count], curve.loss[:count], curve.standard_error[:count], curve.floor, curve.ended)


class _Window(NamedTuple):
    """The evaluations of a curve at which an onset is looked for, and all that decides their model."""

    model: tuple[tuple[int, ...], Schedule, int]
    losses: tuple[float, ...]
    error: float


def onset(curve: Curve, schedule: Schedule, budget_steps: int) -> dict[str, Any]:
    """Return probability, onset_step, low, high and kind of one curve, trained under a schedule of so many steps."""
    return _onsets([_window(curve, schedule, budget_steps)])[0]


def _window(curve: Curve, schedule: Schedule, budget_steps: int) -> _Window | None:
    """Return the evaluations after warm-up; None where they are too few, or their losses one number."""
    inside = _spread(curve.step, max(0, schedule.warmup * budget_steps))
    losses = tuple(curve.loss[i] for i in inside)
    if len(inside) < FEWEST_POINTS or min(losses) == max(losses):
        return None
    error = float(np.median([curve.standard_error[i] for i in inside]))
    return _Window((tuple(curve.step[i] for i in inside), schedule, budget_steps), losses, error)


def _onsets(windows: Sequence[_Window | None]) -> list[dict[str, Any]]:
    """Return what ``onset`` does of each window; those of one model are looked at together, which takes less time."""
    found: list[dict[str, Any]] = [{**UNKNOWN, "probability": math.nan, "kind": "unknown"} for _ in windows]
    by_model: dict[Any, list[tuple[int, _Window]]] = {}
    for place, window in enumerate(windows):
        if window is not None:
            by_model.setdefault(window.model, []).append((place, window))
    for (steps, schedule, budget_steps), members in by_model.items():
        clock_N, fall_RN = clock_and_falls(np.array(steps, dtype=np.float64), schedule, budget_steps)
        model = OnsetModel(clock_N, fall_RN)
        for part in (members[i : i + AT_ONCE] for i in range(0, len(members), AT_ONCE)):
            losses_KN, error_K = (np.array([getattr(of, name) for _, of in part]) for name in ("losses", "error"))
            posterior = model.posterior(losses_KN, error_K)
            for k, (place, _) in enumerate(part):
                found[place] = _told(posterior, k, clock_N, steps)
    return found


def _told(posterior: Posterior, k: int, clock_N: Floats, steps: tuple[int, ...]) -> dict[str, Any]:
    probability = float(posterior.probability_K[k])
    if probability <= 0.5:
        return {**UNKNOWN, "probability": probability, "kind": "none"}
    low, middle, high = (
        math.exp(np.interp(math.log(value_K[k]), np.log(clock_N), np.log(steps)))
        for value_K in (posterior.low_K, posterior.onset_K, posterior.high_K)
    )
    kind = "rises" if posterior.rises_K[k] > 0.5 else "flattens"
    return {"probability": probability, "onset_step": middle, "low": low, "high": high, "kind": kind}


def _spread(steps: tuple[int, ...], after: float) -> list[int]:
    """Return the places of the evaluations after a step, of many those nearest to even places of its logarithm."""
    inside = [i for i, step in enumerate(steps) if step > after]
    if len(inside) <= MOST_POINTS:
        return inside
    log_N = np.log([steps[i] for i in inside])
    even = np.linspace(log_N[0], log_N[-1], MOST_POINTS)
    return [inside[n] for n in np.unique(np.abs(log_N - even[:, None]).argmin(1))]


def clock_and_falls(step_N: Floats, schedule: Schedule, budget_steps: int) -> tuple[Floats, Floats]:
    """Return the sum of learning rates before each step over the highest, and shapes of a fall beside the power law.

    Of a decay, the effect of each fall of the learning rate grows to its whole with a lag of ``LAGS`` (Tissue et al.
    2024, the area S2, whose momentum is one lag); the last shape is the area under all that the decay has withheld.
    Where the learning rate never falls before the last step, the shapes are those of an early fall, by ``EARLY``.
    """
    from scipy.signal import lfilter

    at_J, factor_J = _factors(schedule, budget_steps)
    count = len(at_J) - 1
    clock_J = np.concatenate([[0.0], np.cumsum(factor_J[:-1])]) * (budget_steps / count)
    withheld_J = np.concatenate([[0.0], np.cumsum(np.maximum(-np.diff(factor_J), 0.0))])
    clock_N, shapes = np.interp(step_N, at_J, clock_J), []
    for lag in LAGS:
        momentum = math.exp(-1 / (lag * count)) if lag else 0.0
        shape_N = np.interp(step_N, at_J, lfilter([1.0], [1.0, -momentum], withheld_J))
        if shape_N[-1] > shape_N[0]:
            shapes.append(shape_N / shape_N[-1])
    return clock_N, np.array(shapes or [1 - (clock_N / clock_N[0]) ** -power for power in EARLY])


@lru_cache(maxsize=32)
def _factors(schedule: Schedule, budget_steps: int) -> tuple[Floats, Floats]:
    """Return even steps of a budget, and the schedule's multiple of the learning rate at each."""
    count = min(budget_steps, MOST_SAMPLES)
    at_J = np.asarray(np.arange(count + 1) * (budget_steps / count), dtype=np.float64)
    return at_J, np.array([schedule.factor(min(int(step), budget_steps - 1), budget_steps) for step in at_J])


def turn(steps: tuple[int, ...], values: tuple[float | None, ...], sign: int, after: float) -> float:
    """Return the step of a series' most prominent maximum (``sign`` 1) or minimum (-1) after a step; NaN for none.

    The noise is that of second differences, by their median. A maximum must be ``PROMINENCE`` times as prominent: so
    far must the series fall on both sides before it ends or rises higher.
    """
    from scipy.signal import find_peaks

    known = [(s, sign * v) for s, v in zip(steps, values, strict=False) if v is not None and s > max(0, after)]
    if len(known) < 3:
        return math.nan
    series_N = np.array([value for _, value in known])
    noise = 1.4826 * float(np.median(np.abs(np.diff(series_N, 2)))) / math.sqrt(6)
    peaks, about = find_peaks(series_N, prominence=max(PROMINENCE * noise, 1e-9 * float(np.ptp(series_N))))
    return float(known[peaks[about["prominences"].argmax()]][0]) if len(peaks) else math.nan
