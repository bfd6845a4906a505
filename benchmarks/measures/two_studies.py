"""How often the intervals of ``isoloss compare`` hold the truth: ``python -m benchmarks.measures.two_studies``.

500 simulated pairs of studies each, read by the comparison's own tables, a pair as one combination of an axis.
``cell``: one cell, the second study's noise twice the first's; paired studies share a part of their noise.
``sensitivity`` and ``best loss``: five learning rates around a parabola whose middle differs, noise that grows with
the rate, so much that the second study's best rate is not sure; the truth of the best loss is that of the best rate.
``band``: the 90 % interval of the difference of two independent skewed ends (lognormal), whose own intervals are
exact; the bar is 85 to 95 %. ``family``: how many of 500 pairs of equal studies over 20 cells have any p below 0.05
by Holm; the bar is at most 7 %.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from isoloss.analysis.compare_bands import differences
from isoloss.analysis.compare_cells import cells_table
from isoloss.analysis.compare_rates import groups_table
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.statistics import holm

DRAWS = 500
REPLICATES = (3, 5, 8)
PAIR = "pair"
RATES = tuple(10 ** (-4 + i / 2) for i in range(5))


def frame(excess: Any, axes: tuple[str, ...], values: list[tuple[float, ...]]) -> pd.DataFrame:
    """Return a table of trials from losses (cells x replicates), one row of ``values`` a cell."""
    rows = [
        {"key": f"{i}/{r}", **dict(zip(axes, cell, strict=True)), "replicate": r, "outcome": "plateaued",
         "capped_excess": float(excess[i, r])}
        for i, cell in enumerate(values)
        for r in range(excess.shape[1])
    ]  # fmt: skip
    return pd.DataFrame(rows)


def coverage(low: Any, high: Any, truth: Any) -> float:
    return float(np.mean((np.asarray(low) <= truth) & (truth <= np.asarray(high))))


def noise(random: np.random.Generator, cells: int, replicates: tuple[int, int], paired: bool) -> Any:
    """Return both studies' noise (cells x replicates); of paired ones three quarters of the variance are shared."""
    left, right = (random.normal(size=(cells, count)) for count in replicates)
    if paired:
        shared = random.normal(size=left.shape) * math.sqrt(3)
        left, right = (left + shared) / 2, (right + shared) / 2
    return left, 2 * right


def of_cells(replicates: tuple[int, int], paired: bool) -> float:
    left, right = noise(np.random.default_rng([1, *replicates, paired]), DRAWS, replicates, paired)
    values = [(float(i),) for i in range(DRAWS)]
    table = cells_table(frame(left, (PAIR,), values), frame(right + 0.7, (PAIR,), values), (PAIR,), paired=paired)
    return coverage(table["low"], table["high"], 0.7)


def of_rates(replicates: tuple[int, int], paired: bool) -> dict[str, float]:
    """Return the coverage of the differences of sensitivity and best loss."""
    random = np.random.default_rng([2, *replicates, paired])
    shape = np.array(np.log10(RATES)) + 3
    true = [0.1 + 0.8 * (shape - 0.1) ** 2, 0.15 + 0.6 * (shape + 0.15) ** 2]
    spread = 0.02 * (1 + np.arange(5) / 2)
    both = noise(random, DRAWS * 5, replicates, paired)
    values = [(float(i), rate) for i in range(DRAWS) for rate in RATES]
    studies = [
        frame(np.tile(curve, DRAWS)[:, None] + np.tile(spread, DRAWS)[:, None] * error, (PAIR, LEARNING_RATE), values)
        for curve, error in zip(true, both, strict=True)
    ]
    table = groups_table(*studies, (PAIR, LEARNING_RATE), RATES, paired=paired)
    # A replicate's sensitivity is above the lowest of its own losses: its truth is the mean of many replicates.
    many = noise(random, 5, (200_000, 200_000), paired)
    losses = [curve[:, None] + spread[:, None] * error for curve, error in zip(true, many, strict=True)]
    sensitivity = [float((loss.mean(axis=0) - loss.min(axis=0)).mean()) for loss in losses]
    return {
        "sensitivity": coverage(table["sensitivity_low"], table["sensitivity_high"], sensitivity[1] - sensitivity[0]),
        "best loss": coverage(table["best_low"], table["best_high"], true[1].min() - true[0].min()),
    }


def of_bands(skew: float) -> float:
    """Return how often the interval of a difference holds it, over draws from two independent posteriors."""
    random = np.random.default_rng(3)
    z = norm.ppf(0.95)
    row: dict[str, Any] = {"level": 0.5, "closed": 0.0}
    for name in ("lowest", "highest"):
        ends = {"": 0.0, "_from": math.expm1(-z * skew), "_to": math.expm1(z * skew)}
        row |= {f"{name}{column}": 10 ** (value / skew * 0.1) for column, value in ends.items()}
        row[f"{name}_is_bound"] = False
    table = differences(pd.DataFrame([row]), pd.DataFrame([row]), ())
    left, right = np.expm1(skew * random.normal(size=(2, 100_000))) / skew * 0.1
    return coverage(table["lowest_from"].iloc[0], table["lowest_to"].iloc[0], right - left)


def of_family(replicates: int) -> float:
    cells = 20
    left, right = noise(np.random.default_rng([4, replicates]), DRAWS * cells, (replicates,) * 2, True)
    values = [(float(i),) for i in range(DRAWS * cells)]
    table = cells_table(frame(left, (PAIR,), values), frame(right, (PAIR,), values), (PAIR,), paired=True)
    families = table["p"].to_numpy().reshape(DRAWS, cells)
    return float(np.mean([min(holm(family.tolist())) < 0.05 for family in families]))


def line(what: str, replicates: str, method: str, share: float, bar: tuple[float, float]) -> None:
    verdict = "passed" if bar[0] <= share <= bar[1] else "MISSED"
    limits = f"{100 * bar[0]:.0f} to {100 * bar[1]:.0f} %"
    print(f"| {what} | {replicates} | {method} | {100 * share:.1f} % | {limits} | {verdict} |")


def main() -> None:
    print("| what | replicates | method | share | bar | |\n|---|---|---|---|---|---|")
    counts = [((n, n), True) for n in REPLICATES] + [((3, 3), False), ((3, 8), False), ((8, 8), False)]
    for replicates, paired in counts:
        method, shown = "Student, paired" if paired else "Welch", f"{replicates[0]} and {replicates[1]}"
        line("cell", shown, method, of_cells(replicates, paired), (0.90, 0.98))
        for what, share in of_rates(replicates, paired).items():
            line(what, shown, method, share, (0.90, 0.98))
    for skew in (0.1, 0.5, 1.0):
        line(f"band, skew {skew:g}", "–", "quadrature, 90 %", of_bands(skew), (0.85, 0.95))
    line("family of 20 cells", "5 and 5", "Holm, any p < 0.05", of_family(5), (0.0, 0.07))


if __name__ == "__main__":
    main()
