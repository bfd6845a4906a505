"""What the benchmark prints: a table a truth, one of intervals, one of costs, and the bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.boundary.bars import LEVELS, Bar
from benchmarks.boundary.figures import Runs, accuracy, checkpoints, cost_to, shown, trials_to
from benchmarks.boundary.intervals import ENDS, ESTIMATORS, Reading, Summary
from benchmarks.boundary.methods import METHODS, OURS, OURS_COST
from benchmarks.boundary.runs import CHECKPOINTS


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_truth(runs: Runs, truth: str) -> str:
    """Return how accurate each method's map is at each checkpoint, and when it reaches a level; medians over seeds."""
    methods = [name for name in METHODS if (truth, name) in runs]
    judged = [at for at in CHECKPOINTS if any(at in checkpoints(runs[truth, name]) for name in methods)]
    header = ["method", "seeds", *(str(at) for at in judged), *(f"n to {100 * level:g} %" for level in LEVELS), "ms"]
    rows = []
    for name in methods:
        found = runs[truth, name]
        rows.append([
            name, str(len(found)),
            *(f"{100 * accuracy(found, at):.1f}" if at in checkpoints(found) else "" for at in judged),
            *(shown(trials_to(found, level), found) for level in LEVELS),
            f"{1000 * sum(one.seconds for one in found) / sum(len(one.excess) for one in found):.0f}",
        ])  # fmt: skip
    return f"## {truth}: accuracy in %\n\n{table(header, rows)}\n"


def of_intervals(readings: dict[str, list[Reading]]) -> str:
    """Return how the 90 % intervals of a band's ends fare under the map's two surfaces and under one."""
    header = ["truth", "end", "estimator", "trials", "readings", "covered", "bias", "error", "width"]
    rows = []
    for truth, found in readings.items():
        counts = sorted({row.trials for row in found})
        for end in ENDS:
            for name in ESTIMATORS:
                for trials in [None, *counts]:
                    of_kind = [row for row in found
                               if (row.end, row.estimator) == (end, name) and trials in (None, row.trials)]  # fmt: skip
                    if of_kind:
                        one = Summary.of(of_kind)
                        rows.append([
                            truth, end, name, "all" if trials is None else str(trials), str(one.count),
                            f"{one.coverage:.3f}", f"{one.bias:+.3f}", f"{one.error:.3f}", f"{one.width:.3f}",
                        ])  # fmt: skip
    return f"## 90 % intervals of the band's ends, in decades of the learning rate\n\n{table(header, rows)}\n"


def of_costs(runs: Runs) -> str:
    """Return what is spent until a level is reached, where suggestions weigh the cost and where they do not."""
    rows = []
    for truth in dict.fromkeys(truth for truth, _ in runs):
        plain, weighed = runs.get((truth, OURS)), runs.get((truth, OURS_COST))
        if not plain or not weighed:
            continue
        for level in (0.95, 0.97, 0.98):
            without, with_cost = cost_to(plain, level), cost_to(weighed, level)
            ratio = f"{with_cost / without:.2f}" if math.isfinite(with_cost) and math.isfinite(without) else ""
            trials = f"{shown(trials_to(weighed, level), weighed)} to {shown(trials_to(plain, level), plain)}"
            rows.append([truth, f"{100 * level:g} %", f"{with_cost:.4g}", f"{without:.4g}", ratio, trials])
    header = ["truth", "accuracy", "cost with `cost=`", "cost without", "ratio", "trials"]
    return f"## Cost until an accuracy is reached\n\n{table(header, rows)}\n"


def of_times(seconds: dict[str, dict[int, tuple[float, float]]]) -> str:
    """Return the CPU time of one suggestion: the median of some in a row, and the first of them."""
    rows = [[truth, f"{trials:,}", f"{1000 * middle:.0f}", f"{1000 * first:.0f}"]
            for truth, by_trials in seconds.items() for trials, (middle, first) in by_trials.items()]  # fmt: skip
    return f"## One suggestion\n\n{table(['truth', 'trials', 'median ms', 'first ms'], rows)}\n"


def of_bars(found: Sequence[Bar]) -> str:
    """Return the bars, and how many are passed."""
    passed = sum(one.passed is True for one in found)
    header = "| what | bar | figure | |\n|---|---|---|---|"
    rows = "\n".join(one.row() for one in found)
    return f"## Bars: {passed} of {len(found)} passed\n\n{header}\n{rows}\n"
