"""The bars: what the search has to reach, and whether it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.boundary.figures import Runs, accuracy, checkpoints, last, shown, trials_to
from benchmarks.boundary.intervals import ENDS, ONE, TWO, Reading, Summary
from benchmarks.boundary.methods import BASELINES, OURS, OURS_8
from benchmarks.boundary.timing import BOUNDS

REACHED = (
    ("band2d", 0.95, 24), ("band2d", 0.98, 64), ("band3d", 0.95, 36), ("band3d", 0.98, 104), ("real", 0.975, 64),
)  # fmt: skip
"""Accuracy of a truth, and the trials by which it has to be reached and held, the median over seeds."""

LEVELS = (0.95, 0.97, 0.98)
MORE_WITH_SLOTS = 1.2
OF_BASELINE = 0.5
BEHIND, BEHIND_FROM = 0.005, 16
"""Most that the median accuracy may lie below any baseline's, at every checkpoint from so many trials on."""

TRUE_OVER_STATED, CHECKS_WITHIN, CHECKS_FROM = 1.5, 0.95, 24
COVERAGE, WIDER = 0.88, 1.5


@dataclass(frozen=True)
class Bar:
    """One bar: what is measured, what it has to be, and what it is; ``passed`` is None where it was not measured."""

    what: str
    bound: str
    figure: str
    passed: bool | None

    def row(self) -> str:
        word = {True: "PASS", False: "FAIL", None: "not run"}[self.passed]
        return f"| {self.what} | {self.bound} | {self.figure} | {word} |"


def bars(
    runs: Runs, readings: dict[str, list[Reading]], seconds: dict[str, dict[int, tuple[float, float]]]
) -> list[Bar]:
    """Return every bar, of the runs, the readings of bands' ends and the times that there are."""
    return [*_reached(runs), *_slots(runs), *_baselines(runs), *_stated(runs), *_ends(readings), *_times(seconds)]


def _reached(runs: Runs) -> Iterator[Bar]:
    for truth, level, most in REACHED:
        ours = runs.get((truth, OURS), [])
        found = trials_to(ours, level) if ours else math.nan
        yield Bar(
            f"{truth}: trials to {100 * level:g} %", f"{most}",
            shown(found, ours) if ours else "", found <= most if ours else None,
        )  # fmt: skip


def _slots(runs: Runs) -> Iterator[Bar]:
    for (truth, name), slots in runs.items():
        one = runs.get((truth, OURS), [])
        if name != OURS_8 or not one:
            continue
        for level in LEVELS:
            alone, together = trials_to(one, level), trials_to(slots, level)
            if math.isfinite(alone):
                yield Bar(
                    f"{truth}: trials to {100 * level:g} % with 8 slots, to those with one",
                    f"{MORE_WITH_SLOTS:g}x",
                    f"{together / alone:.2f}x ({shown(together, slots)} to {shown(alone, one)})",
                    together <= MORE_WITH_SLOTS * alone + 1e-9,
                )


def _baselines(runs: Runs) -> Iterator[Bar]:
    for truth in dict.fromkeys(truth for truth, _ in runs):
        ours = runs.get((truth, OURS), [])
        others = {name: runs[truth, name] for name in BASELINES if (truth, name) in runs}
        if not ours or not others:
            continue
        long = {name: one for name, one in others.items() if last(one) == last(ours)}
        if truth == "band3d" and long:
            best = min(long, key=lambda name: trials_to(long[name], 0.97))
            # A baseline that never gets there needs more than the last checkpoint.
            needs = min(trials_to(long[best], 0.97), last(ours))
            found = trials_to(ours, 0.97)
            yield Bar(
                f"{truth}: trials to 97 %, to those of the best baseline ({best})", f"{OF_BASELINE:g}x",
                f"{found / needs:.2f}x ({shown(found, ours)} to {shown(trials_to(long[best], 0.97), ours)})",
                found <= OF_BASELINE * needs,
            )  # fmt: skip
        behind, at, name = max(
            (accuracy(one, at) - accuracy(ours, at), at, name)
            for name, one in others.items() for at in checkpoints(one) if at >= BEHIND_FROM and at in ours[0].accuracy
        )  # fmt: skip
        yield Bar(
            f"{truth}: points behind any baseline, from {BEHIND_FROM} trials on", f"{100 * BEHIND:g}",
            f"{100 * behind:+.2f} ({name} at {at})", behind <= BEHIND,
        )  # fmt: skip


def _stated(runs: Runs) -> Iterator[Bar]:
    for (truth, name), found in runs.items():
        if name in (OURS, OURS_8):
            within = [
                1.0 - one.accuracy[at] <= TRUE_OVER_STATED * one.error_volume[at]
                for one in found for at in one.accuracy if at >= CHECKS_FROM
            ]  # fmt: skip
            share = sum(within) / len(within)
            yield Bar(
                f"{truth}, {name}: share of checks with the true error at most {TRUE_OVER_STATED:g}x the stated one",
                f"{CHECKS_WITHIN:g}", f"{share:.3f} of {len(within)}", share >= CHECKS_WITHIN,
            )  # fmt: skip


def _ends(readings: dict[str, list[Reading]]) -> Iterator[Bar]:
    for truth, rows in readings.items():
        for end in ENDS:
            ours, one = (Summary.of([row for row in rows if (row.estimator, row.end) == (name, end)])
                         for name in (TWO, ONE))  # fmt: skip
            yield Bar(
                f"{truth}: 90 % intervals of the {end} learning rate that cover it", f"{COVERAGE:g}",
                f"{ours.coverage:.3f} of {ours.count}", ours.coverage >= COVERAGE,
            )  # fmt: skip
            yield Bar(
                f"{truth}: their median width, to that under one surface", f"{WIDER:g}x",
                f"{ours.width / one.width:.2f}x ({ours.width:.3f} to {one.width:.3f} decades)",
                ours.width <= WIDER * one.width,
            )  # fmt: skip


def _times(seconds: dict[str, dict[int, tuple[float, float]]]) -> Iterator[Bar]:
    for truth, by_trials in seconds.items():
        for trials, (middle, _) in by_trials.items():
            yield Bar(
                f"{truth}: CPU time of a suggestion after {trials:,} trials", f"{1000 * BOUNDS[trials]:.0f} ms",
                f"{1000 * middle:.0f} ms", middle <= BOUNDS[trials],
            )  # fmt: skip
