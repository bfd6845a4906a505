"""How well saturation onsets are found, on simulated curves: ``python -m benchmarks.measures.onset``, or ``--quick``.

A curve is a power law with a floor over the sum of learning rates, less what the decay brings with a momentum of 0.999
(Tissue et al. 2024). With an onset, its law stops at a uniformly drawn place: half of the losses stay where they are,
half rise as fast as they fell. Noise is half independent, half fluctuation that lasts 3 % of the budget, so that it is
not the model's; the error that all evaluations share is three times as large, as of real trials.

Columns: evaluations after warm-up; noise over the fall of the law; false alarms, the share of curves without an onset
whose probability exceeds a half; detected, the same of curves with one; the share of those whose kind is right; the
median error of a detected onset, in ln step; coverage of its 95 % interval, of all onsets and of those detected, whose
bar is 90 to 98 %. The last rows are no power law at first: an additional fall as t^-2 from the end of warm-up on, and a
logistic over ln t in its place.
"""

# N evaluations, K curves

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from isoloss.analysis.onset import clock_and_falls
from isoloss.analysis.onset_model import Floats, OnsetModel, Posterior
from isoloss.config.parts import Evaluation, WarmupStableDecay

STEPS, WARMUP, MOMENTUM, ANNEALED = 5000, 0.05, 0.999, 0.1
COMMON = 3
DRAWS, AT_ONCE = 500, 25
BAR = (0.90, 0.98)


@dataclass(frozen=True)
class Cosine:
    """A cosine from the end of warm-up to a tenth."""

    warmup: float = WARMUP

    def factor(self, step: int, steps: int) -> float:
        begin = self.warmup * steps
        if step < begin:
            return (step + 1) / begin
        return 0.55 + 0.45 * math.cos(math.pi * (step - begin) / (steps - begin))


SCHEDULES = {
    "constant": WarmupStableDecay(warmup=WARMUP, decay=0.0),
    "decay of 20 %": WarmupStableDecay(warmup=WARMUP, decay=0.2),
    "linear decay": WarmupStableDecay(warmup=WARMUP, decay=1 - WARMUP),
    "cosine": Cosine(),
}


class Simulation:
    """Curves of one schedule, evaluated at so many points."""

    def __init__(self, schedule: str, points: int, seed: int = 0) -> None:
        rule = SCHEDULES[schedule]
        factor = np.array([rule.factor(step, STEPS) for step in range(STEPS)])
        fallen = np.concatenate([[0.0], np.cumsum(np.maximum(factor[:-1] - factor[1:], 0.0)), [0.0]])
        fallen[-1] = fallen[-2]
        annealed = lfilter([1.0], [1.0, -MOMENTUM], fallen)
        self.step_N = np.array([step for step in Evaluation(points=points).steps(STEPS) if step > WARMUP * STEPS])
        self.log_N = np.log(np.concatenate([[0.0], np.cumsum(factor)])[self.step_N])
        self.annealed_N = annealed[self.step_N] / max(annealed[-1], 1e-12)
        self.random = np.random.default_rng(seed)
        self.model = OnsetModel(*clock_and_falls(self.step_N.astype(float), rule, STEPS))

    def curves(self, noise: float, after: Floats | None, shape: str) -> tuple[Floats, Floats]:
        """Return curves of K x N, and the logarithm of the clock at their onsets.

        ``after`` is the slope after the onset, as a multiple of that at it; None for no onset.
        """
        exponent = self.random.uniform(0.1, 0.8, (DRAWS, 1))
        ahead = (self.model.onset_T[0], self.model.onset_T[-1])
        onset = self.random.uniform(*ahead, (DRAWS, 1)) if after is not None else np.full((DRAWS, 1), np.inf)
        first, last = self.log_N[0], self.log_N[-1]
        fall = 1 / (np.exp(-exponent * first) - np.exp(-exponent * last))
        until = np.minimum(self.log_N, onset)
        law = fall * np.exp(-exponent * until)
        slope = -exponent * fall * np.exp(-exponent * until[:, -1:])
        loss = 3 + law - ANNEALED * self.annealed_N
        if after is not None:
            loss += after * slope * (self.log_N - until)
        if shape == "early fall":
            loss += 2 * np.exp(-2 * (self.log_N - first))
        if shape == "logistic":
            middle = self.random.uniform(0.3, 0.7, (DRAWS, 1)) * (last - first) + first
            loss = 3 + 1 / (1 + np.exp(3 * (self.log_N - middle)))
        return loss + noise * self._noise() + COMMON * noise * self.random.normal(size=(DRAWS, 1)), onset[:, 0]

    def _noise(self) -> Floats:
        apart = np.abs(self.step_N[:, None] - self.step_N) / (0.03 * STEPS)
        factor = np.linalg.cholesky(np.exp(-apart) + 1e-10 * np.eye(len(apart)))
        independent, fluctuation = self.random.normal(size=(2, DRAWS, len(apart)))
        noise: Floats = (independent + fluctuation @ factor.T) / math.sqrt(2)
        return noise

    def found(self, loss_KN: Floats, noise: float) -> Posterior:
        parts = [
            self.model.posterior(part_KN, np.full(len(part_KN), COMMON * noise))
            for part_KN in np.split(loss_KN, len(loss_KN) // AT_ONCE)
        ]
        names = ("probability_K", "onset_K", "low_K", "high_K", "rises_K")
        return Posterior(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def row(schedule: str, points: int, noise: float, shape: str = "power law") -> tuple[str, ...]:
    """Return one row of the table."""
    simulation = Simulation(schedule, points)
    name = schedule if shape == "power law" else f"{schedule}, {shape}"
    cells = [name, str(len(simulation.step_N)), f"{noise:g}"]
    null = simulation.found(simulation.curves(noise, None, shape)[0], noise)
    cells.append(f"{(null.probability_K > 0.5).mean():.1%}")
    if shape == "logistic":
        return (*cells, *[""] * 6)
    rises = np.arange(DRAWS) % 2 == 1
    loss_KN, onset_K = simulation.curves(noise, np.where(rises, -1.0, 0.0)[:, None], shape)
    found = simulation.found(loss_KN, noise)
    seen = found.probability_K > 0.5
    error_K = np.abs(np.log(found.onset_K) - onset_K)
    covered_K = (np.log(found.low_K) <= onset_K) & (onset_K <= np.log(found.high_K))
    share = covered_K[seen].mean()
    return (
        *cells,
        f"{seen[~rises].mean():.1%}",
        f"{seen[rises].mean():.1%}",
        f"{((found.rises_K > 0.5) == rises)[seen].mean():.1%}",
        f"{np.median(error_K[seen]):.3f}",
        f"{covered_K.mean():.1%}",
        f"{share:.1%}{'' if BAR[0] <= share <= BAR[1] else ' (outside the bar)'}",
    )


HEADER = (
    *("schedule", "evaluations", "noise", "false alarms", "flattening detected", "rise detected", "kind right"),
    *("median error", "coverage, all", "coverage, detected"),
)


def rows(quick: bool) -> list[Callable[[], tuple[str, ...]]]:
    cases = [("constant", points, noise) for points in (30, 60, 160) for noise in (0.01, 0.03)]
    cases += [("decay of 20 %", 60, 0.01), ("linear decay", 60, 0.01), ("cosine", 60, 0.01), ("cosine", 60, 0.03)]
    of_law = [lambda case=case: row(*case) for case in (cases[4:5] if quick else cases)]
    return of_law + [lambda shape=shape: row("constant", 60, 0.01, shape) for shape in ("early fall", "logistic")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rows")
    print("| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER), sep="\n")
    for case in rows(parser.parse_args().quick):
        print("| " + " | ".join(case()) + " |", flush=True)


if __name__ == "__main__":
    main()
