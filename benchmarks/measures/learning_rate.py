"""How often intervals of learning-rate measures hold the truth: ``python -m benchmarks.measures.learning_rate``.

The truth: loss is a parabola in log10 of the learning rate around its best, and rises steeply to the initial loss
beyond a cliff. Seeds differ in where the cliff is (``fringe``, in decades) and in their height; cells scatter on
top of that; both are larger where the loss is high. What a measure speaks of is computed from the truth by brute force.
The bar of the 95 % intervals is 90 to 98 % over 500 studies.
"""

# S studies, R replicates, P learning rates

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm

from isoloss import AdamW, Choice, Decoder, Linear, Log, Random, SpamLang, Steps, Study
from isoloss.analysis.best_rate import best_rate_table
from isoloss.analysis.fitted_sensitivity import fitted_sensitivity_table
from isoloss.analysis.sensitivity import LEARNING_RATE, sensitivity_table
from isoloss.analysis.stable_range import stable_range_table
from isoloss.search.points import random_cells

Array = NDArray[np.float64]

STUDIES, SEEDS = 500, 2000
BAR = (0.90, 0.98)
V = "task.vocab_size"
LOW, HIGH = -4.0, -1.0
FRINGES, REPLICATES = (0.05, 0.1, 0.2), (3, 5, 8)
LEAST_NOISE, NOISE, OF_SEED = 0.02, 0.05, 0.6
STEEPNESS, FOOT = 0.12, 0.3
ABOVE_BEST = 0.5
"""Excess loss above the best one up to which a trial counts as converged."""


@dataclass(frozen=True)
class Truths:
    """Curves of loss by learning rate, one a study, (S,) each: best rate, cliff, lowest, curvature, initial loss."""

    best: Array
    cliff: Array
    lowest: Array
    curvature: Array
    initial: Array
    fringe: float

    @classmethod
    def drawn(cls, count: int, fringe: float, rng: np.random.Generator) -> Truths:
        best = rng.uniform(-2.75, -2.25, count)
        return cls(
            best,
            best + rng.uniform(0.5, 0.9, count),
            rng.uniform(0.1, 0.5, count),
            rng.uniform(0.5, 1.2, count),
            rng.uniform(4.0, 8.0, count),
            fringe,
        )

    def seeds(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return where the cliff of each seed is and how high it stands, (S, R) each."""
        shape = (len(self.best), count)
        return self.cliff[:, None] + self.fringe * rng.standard_normal(shape), rng.standard_normal(shape)

    def of_seed(self, cliff_SR: Array, height_SR: Array, x_SP: Array) -> Array:
        """Return the loss of each seed before cells scatter, (S, R, P)."""
        x = x_SP[:, None, :]
        smooth = (self.lowest[:, None, None] + self.curvature[:, None, None] * (x - self.best[:, None, None]) ** 2
                  + FOOT * np.exp((x - cliff_SR[:, :, None]) / STEEPNESS))  # fmt: skip
        return smooth + OF_SEED * self.noise(smooth) * height_SR[:, :, None]

    def noise(self, loss: Array) -> Array:
        return LEAST_NOISE + NOISE * np.minimum(loss, 10.0)

    def cells(self, count: int, x_SP: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Return capped losses of ``count`` replicates, (S, R, P), and their seeds."""
        cliff_SR, height_SR = self.seeds(count, rng)
        loss = self.of_seed(cliff_SR, height_SR, x_SP)
        loss = loss + math.sqrt(1 - OF_SEED**2) * self.noise(loss) * rng.standard_normal(loss.shape)
        return np.minimum(loss, self.initial[:, None, None]), cliff_SR, height_SR

    def mean_curve(self, x_SP: Array) -> Array:
        """Return the mean over seeds where the cap does not matter, (S, P): the cliff's factor is log-normal."""
        moved = self.cliff[:, None] - self.fringe**2 / (2 * STEEPNESS)
        return self.of_seed(moved, np.zeros_like(moved), x_SP)[:, 0]

    def geometric_mean(self, x_SP: Array, seeds: int = 64) -> Array:
        """Return the geometric mean over seeds and cells, (S, P), where the cap does not matter.

        Seeds lie at even quantiles; that cells scatter by a share s lowers the mean logarithm by s² / 2.
        """
        normal_R = norm.ppf((np.arange(seeds) + 0.5) / seeds)
        height_R = np.random.default_rng(0).permutation(normal_R)
        total_SP = np.zeros(x_SP.shape)
        for cliff, height in zip(normal_R, height_R, strict=True):
            at_S = self.cliff[:, None] + self.fringe * cliff
            loss_SP = self.of_seed(at_S, np.full_like(at_S, height), x_SP)[:, 0]
            total_SP += np.log(loss_SP) - (1 - OF_SEED**2) * (self.noise(loss_SP) / loss_SP) ** 2 / 2
        return np.exp(total_SP / seeds)


def study(values: range | None, points: int | None, replicates: int, cells: int = 0, seed: int = 0) -> Study:
    return Study(
        name="simulated",
        question="Do intervals hold the truth?",
        task=SpamLang(vocab_size=64, sequence_length=8),
        model=Decoder(width=32, depth=2),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(300, batch_size=32),
        axes={
            V: Log(64, 1024) if values is None else Choice(*values),
            LEARNING_RATE: Log(10**LOW, 10**HIGH, **({} if points is None else {"points": points})),
        },
        replicates=replicates,
        seed=seed,
        **({"search": Random(cells=cells)} if cells else {}),
    )


def simulated(count: int, points: int, replicates: int, fringe: float) -> tuple[Study, pd.DataFrame, Truths, Any]:
    """Return a study whose every vocabulary size stands for one simulated study, its trials, and their truths."""
    rng = np.random.default_rng([points, replicates, round(100 * fringe)])
    truths = Truths.drawn(count, fringe, rng)
    of = study(range(64, 64 + count), points, replicates)
    rates = of.axes[LEARNING_RATE].grid()
    loss, *seeds = truths.cells(replicates, np.tile(np.log10(rates), (count, 1)), rng)
    place, replicate, rate = (index.ravel() for index in np.indices(loss.shape))
    initial = truths.initial[place]
    excess = loss.ravel()
    converged = excess <= (truths.mean_curve(truths.best[:, None])[:, 0] + ABOVE_BEST)[place]
    frame = pd.DataFrame({
        V: 64 + place,
        LEARNING_RATE: np.array(rates)[rate],
        "replicate": replicate,
        "capped_excess": excess,
        "initial_loss": initial,
        "floor": 0.0,
        "ended": np.where(excess >= initial, "above_initial", "budget"),
        "outcome": np.where(converged, "converged", "plateaued"),
    })  # fmt: skip
    return of, frame, truths, (seeds, rng)


def of_sensitivity(count: int, replicates: int, fringe: float) -> list[tuple[str, Array]]:
    of, trials, truths, (_, rng) = simulated(count, 7, replicates, fringe)
    table = sensitivity_table(of, trials)
    x_P = np.linspace(LOW, HIGH, 7)
    truth = []
    for i in range(count):
        one = Truths(*(getattr(truths, name)[i : i + 1] for name in list(vars(truths))[:-1]), fringe)
        loss = one.cells(SEEDS, x_P[None], rng)[0][0]
        truth.append((loss - loss.min(axis=1, keepdims=True)).mean())
    names = [("sensitivity", "sensitivity")]
    if replicates >= 6:
        names.append(("sensitivity, bootstrap", "sensitivity_boot"))
    return [(name, held(table, column, np.array(truth))) for name, column in names]


def of_best_rate(count: int, points: int, replicates: int, fringe: float) -> list[tuple[str, Array]]:
    """Of one replicate, the truth is that of its own seed."""
    of, trials, truths, (seeds, _) = simulated(count, points, replicates, fringe)
    table = best_rate_table(of, trials)
    x_SP = np.clip(truths.best[:, None] + np.linspace(-0.5, 0.3, 321), LOW, HIGH)
    curve = truths.of_seed(*seeds, x_SP)[:, 0] if replicates == 1 else truths.geometric_mean(x_SP)
    known = (table["convex"] & ~table["at_edge"]).to_numpy()
    rate = 10 ** x_SP[np.arange(count), curve.argmin(axis=1)]
    name = f"{points} rates"
    return [
        (f"best rate, {name}", held(table, "best_rate", rate)[known]),
        (f"loss at it, {name}", held(table, "loss", curve.min(axis=1))[known]),
    ]


def of_stable_range(count: int, points: int, replicates: int, fringe: float) -> list[tuple[str, Array]]:
    of, trials, truths, (_, rng) = simulated(count, points, replicates, fringe)
    table = stable_range_table(of, trials)
    threshold = truths.mean_curve(truths.best[:, None])[:, 0] + ABOVE_BEST
    x_P = np.linspace(LOW, HIGH, 1501)
    ends = []
    for i in range(count):
        one = Truths(*(getattr(truths, name)[i : i + 1] for name in list(vars(truths))[:-1]), fringe)
        inside = one.of_seed(*one.seeds(100, rng), x_P[None])[0] <= threshold[i]
        ends.append((x_P[inside.argmax(axis=1)].mean(), x_P[::-1][inside[:, ::-1].argmax(axis=1)].mean()))
    return [
        (f"{name}, {points} rates", held(table, name, 10 ** np.array(ends)[:, side])[~table[f"{name}_is_bound"]])
        for side, name in enumerate(("lowest", "highest"))
    ]


def of_fitted(count: int, cells: int, fringe: float) -> list[tuple[str, Array]]:
    """The best rate falls, and the lowest and the initial loss rise, with the vocabulary size."""
    rows = []
    for i in range(count):
        rng = np.random.default_rng([cells, i])
        of = study(None, None, 1, cells, seed=i)
        trials = pd.DataFrame(random_cells(of, of.search))
        drawn, move = Truths.drawn(1, fringe, rng), rng.uniform(0.2, 0.6)

        def at(sizes: Any, drawn: Truths = drawn, move: float = move) -> Truths:
            share = np.log(np.asarray(sizes) / 64) / math.log(16)
            best = drawn.best - move * share
            lowest, bend = drawn.lowest * (1 + share), np.full(len(share), drawn.curvature)
            return Truths(best, best + drawn.cliff - drawn.best, lowest, bend, np.log(sizes), fringe)

        truths = at(trials[V].to_numpy())
        trials["capped_excess"] = truths.cells(1, np.log10(trials[[LEARNING_RATE]].to_numpy()), rng)[0][:, 0, 0]
        trials["initial_loss"], trials["floor"], trials["replicate"] = truths.initial, 0.0, 0
        table = fitted_sensitivity_table(of, trials)
        x_P = np.linspace(LOW, HIGH, 101)
        mean = at(table[V].to_numpy()).cells(200, np.tile(x_P, (len(table), 1)), rng)[0].mean(axis=1)
        rows.append(held(table, "sensitivity", mean.mean(axis=1) - mean.min(axis=1)))
    return [(f"fitted sensitivity, {cells} trials", np.concatenate(rows))]


def held(table: pd.DataFrame, name: str, truth: Array) -> Array:
    """Return of each row whether its interval holds the truth (NaN where it has none)."""
    low, high = table[f"{name}_low"].to_numpy(), table[f"{name}_high"].to_numpy()
    return np.where(np.isnan(low), np.nan, (low <= truth) & (truth <= high))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measures.learning_rate", description=__doc__)
    parser.add_argument("--studies", type=int, default=STUDIES)
    parser.add_argument("--only", choices=("sensitivity", "best", "stable", "fitted"))
    options = parser.parse_args()
    count = options.studies
    print("| interval | fringe | replicates | intervals | coverage | 90 to 98 % |\n|---|---|---|---|---|---|")

    def show(found: list[tuple[str, Array]], fringe: float, replicates: int) -> None:
        for name, covers in found:
            covers = covers[~np.isnan(covers)]
            share = covers.mean() if len(covers) else math.nan
            verdict = "yes" if BAR[0] <= share <= BAR[1] else "NO"
            print(f"| {name} | {fringe} | {replicates} | {len(covers)} | {100 * share:.1f} % | {verdict} |", flush=True)

    for fringe in FRINGES:
        for replicates in REPLICATES:
            if options.only in (None, "sensitivity"):
                show(of_sensitivity(count, replicates, fringe), fringe, replicates)
            if options.only in (None, "best"):
                show(of_best_rate(count, 13, replicates, fringe), fringe, replicates)
                show(of_best_rate(count, 7, replicates, fringe), fringe, replicates)
            if options.only in (None, "stable"):
                show(of_stable_range(count, 7, replicates, fringe), fringe, replicates)
    if options.only in (None, "best"):
        show(of_best_rate(count, 13, 1, 0.1), 0.1, 1)
    if options.only in (None, "fitted"):
        show(of_fitted(count, 48, 0.1), 0.1, 1)


if __name__ == "__main__":
    main()
