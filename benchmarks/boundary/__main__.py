"""How many trials the boundary search needs, beside other ways to place them: ``make bench-boundary``.

Prints, for each truth, the median accuracy of every method's map at checkpoints; then how the intervals of the band's
ends fare, what weighing the cost saves, how long a suggestion takes, and the bars. Finished runs are kept in a file, so
that an interrupted benchmark goes on where it was; delete the file to start anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.boundary import tables, timing
from benchmarks.boundary.bars import bars
from benchmarks.boundary.figures import Runs
from benchmarks.boundary.intervals import TRIALS, Reading, all_readings
from benchmarks.boundary.methods import METHODS, OURS, OURS_8, SLOW, SOBOL, TPE
from benchmarks.boundary.runs import SEEDS_OF_SLOW, TRUTHS, Kept, can_run, truth_of

QUICK_TRUTHS = ("band2d", "band3d")
QUICK_METHODS = (OURS, OURS_8, SOBOL, TPE)
QUICK_SEEDS, QUICK_TIMES = 3, (200,)


def main() -> None:
    options = _options()
    kept = Kept(options.out)
    if kept.stale:
        print(f"{options.out}: {kept.stale} of {len(kept.found)} results are from other sources than these; kept\n")
    runs: Runs = {}
    for truth in options.truths:
        try:
            truth_of(truth)
        except FileNotFoundError as error:
            print(f"{truth} is left out: {error}\n")
            continue
        for name in options.methods:
            if can_run(truth, name):
                seeds = min(options.seeds, SEEDS_OF_SLOW) if name in SLOW else options.seeds
                runs[truth, name] = []
                for seed in range(seeds):
                    _show(f"{truth}, {name}: seed {seed}")
                    runs[truth, name].append(kept.run(truth, name, seed))
        _show("")
        print(tables.of_truth(runs, truth), flush=True)
    readings: dict[str, list[Reading]] = {}
    for truth in TRIALS:
        if (truth, OURS) in runs:
            _show(f"{truth}: intervals")
            readings[truth] = all_readings(kept, truth, options.seeds)
    seconds: dict[str, dict[int, tuple[float, float]]] = {}
    for truth in TRIALS:
        if (truth, OURS) in runs:  # never kept: they belong to this machine and this hour
            _show(f"{truth}: time of a suggestion")
            times = QUICK_TIMES if options.quick else tuple(timing.BOUNDS)
            seconds[truth] = {trials: timing.seconds_of_suggestion(truth, trials) for trials in times}
    _show("")
    print(tables.of_intervals(readings))
    print(tables.of_costs(runs))
    print(tables.of_times(seconds))
    print(tables.of_bars(bars(runs, readings, seconds)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boundary", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".bench/boundary.jsonl"), help="where finished runs are kept")
    parser.add_argument("--seeds", type=int, help="seeds of each method (default: 10)")
    parser.add_argument("--truths", nargs="+", choices=TRUTHS, help="truths to find (default: all)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="methods to compare (default: all)")
    parser.add_argument("--quick", action="store_true", help="3 seeds of 2 truths and 4 methods, in 4 minutes")
    options = parser.parse_args()
    quick = options.quick
    options.seeds = options.seeds or (QUICK_SEEDS if quick else 10)
    options.truths = options.truths or (QUICK_TRUTHS if quick else TRUTHS)
    options.methods = options.methods or (QUICK_METHODS if quick else METHODS)
    return options


def _show(text: str) -> None:
    """Say what is being done, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="\r" if not text else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
