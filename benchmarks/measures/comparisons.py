"""How often the 95 % intervals of comparisons hold the truth: ``python -m benchmarks.measures.comparisons [PART…]``.

500 simulated studies each, read by the measures themselves. ``paired``: two arms over five learning rates, tuned per
replicate on the others, with noise that replicates share, that arms have for themselves, and that grows with the rate;
the truth is the difference at the rate that is best on average. ``ratio``: two arms whose curves are power laws of the
step, the logarithm of their ratio of speeds normal over replicates. ``law``: a loss over vocabulary, median of three
replicates at the better of two rates. ``known`` is the share of studies that have an interval; the rest count neither
for nor against it. An end that is not known bounds nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from isoloss import AdamW, Choice, Curve, Decoder, Linear, LowRank, SpamLang, Steps, Study
from isoloss.analysis.paired import paired_table
from isoloss.analysis.power_law_fit import fit_with_intervals
from isoloss.analysis.sensitivity import LEARNING_RATE
from isoloss.analysis.tokens_to_loss import tokens_to_loss

Floats = npt.NDArray[np.float64]

DRAWS, REPLICATES = 500, (3, 5, 8)
BAR = (0.90, 0.98)
DRAW, HEAD = "task.sequence_length", "head"
"""The axes that tell simulated studies and arms apart: many studies are read as the combinations of one."""

RATES = tuple(float(f"{10 ** (-4 + i / 2):.3g}") for i in range(5))
LABELS = ("linear()", "low_rank(2)")


class Coverage(NamedTuple):
    """Of one kind of interval: the shares that are known, that hold the truth, and how wide they are."""

    what: str
    replicates: str
    known: float
    coverage: float
    width: float

    @classmethod
    def of(cls, what: str, replicates: str, low: Sequence[float], high: Sequence[float], truth: Any) -> Coverage:
        ends = np.array([low, high], dtype=np.float64)
        known = ~np.isnan(ends).all(axis=0)
        # A comparison with NaN is false: an end that is not known excludes nothing.
        held = ~(ends[0] > truth) & ~(ends[1] < truth)
        return cls(what, replicates, known.mean(), held[known].mean(), float(np.nanmedian(ends[1] - ends[0])))

    def row(self) -> str:
        verdict = "passed" if BAR[0] <= self.coverage <= BAR[1] else "MISSED"
        numbers = f"{100 * self.known:.0f} % | {100 * self.coverage:.1f} % | {self.width:.3g}"
        return (
            f"| {self.what} | {self.replicates} | {numbers} | {100 * BAR[0]:.0f} to {100 * BAR[1]:.0f} % | {verdict} |"
        )


def study(rates: Sequence[float]) -> Study:
    """Return a study whose combinations of the draw's axis are simulated studies of their own."""
    return Study(
        name="coverage",
        question="Do the intervals hold the truth?",
        task=SpamLang(vocab_size=16, sequence_length=4),
        model=Decoder(width=16, depth=1),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(1000, batch_size=4),
        axes={
            HEAD: Choice(Linear(), LowRank(rank=2)),
            DRAW: Choice(*range(2, DRAWS + 2)),
            LEARNING_RATE: Choice(*rates),
        },
        replicates=max(REPLICATES),
        map=(LEARNING_RATE, HEAD),
    )


def trials(loss: Floats, rates: Sequence[float], columns: dict[str, Any]) -> pd.DataFrame:
    """Return the table of trials of losses, of shape draws x arms x rates x replicates."""
    draw, arm, rate, replicate = (index.ravel() for index in np.indices(loss.shape))
    return pd.DataFrame({
        "key": [" ".join(map(str, place)) for place in zip(draw, arm, rate, replicate, strict=True)],
        DRAW: draw + 2, HEAD: np.array(LABELS)[arm], LEARNING_RATE: np.array(rates)[rate], "replicate": replicate,
        "capped_excess": loss.ravel(), "final_excess": loss.ravel(), **columns,
    })  # fmt: skip


def paired() -> Iterator[Coverage]:
    of_all = study(RATES)
    decades = np.log10(RATES) + 3
    for what, optima in (("one best rate", (0.1, -0.1)), ("two rates nearly as good", (0.2, -0.27))):
        rng = np.random.default_rng(0)
        mean = np.array([1.0, 1.1])[:, None] + 0.3 * (decades - np.array(optima)[:, None]) ** 2
        truth = float(np.diff(mean.min(axis=1))[0])
        for count in REPLICATES:
            shared, own = 0.1 * rng.normal(size=(DRAWS, 1, 1, count)), 0.04 * rng.normal(size=(DRAWS, 2, 1, count))
            scatter = 0.03 * np.exp(0.5 * decades)[:, None] * rng.normal(size=(DRAWS, 2, len(RATES), count))
            found = paired_table(of_all, trials(mean[:, :, None] + shared + own + scatter, RATES, {}))
            for method, ends in (("Student", ("low", "high")), ("bootstrap", ("boot_low", "boot_high"))):
                if found[ends[0]].notna().any():
                    low, high = (found[end].tolist() for end in ends)
                    yield Coverage.of(f"paired difference, {method}: {what}", str(count), low, high, truth)


STEPS = tuple(round(10 ** (i / 10)) for i in range(5, 31))


def ratio() -> Iterator[Coverage]:
    """Speeds multiply the step: an arm of twice the speed needs half the training."""
    rates = (1e-3, 1e-2)
    of_all = study(rates)
    cases = (("no replicate censored", 1.5, 0.3), ("some censored", 0.5, 0.5), ("many censored", 0.25, 0.5))
    for what, mean, spread in cases:
        rng = np.random.default_rng(0)
        for count in REPLICATES:
            speed = 0.2 * rng.normal(size=(DRAWS, 1, 1, count)) * np.ones((1, 2, 2, 1))
            speed[:, 1] += mean + spread * rng.normal(size=(DRAWS, 1, count))
            speed[:, :, 1] -= 1.0
            noise = rng.normal(scale=0.002, size=(*speed.shape, len(STEPS)))
            loss = 8 * (np.array(STEPS) * np.exp(speed[..., None])) ** -0.3 + noise

            def curve_of(key: str, loss: Floats = loss) -> Curve:
                found = loss[tuple(map(int, key.split()))].tolist()
                return Curve((0, *STEPS), (9.0, *found), (0.002,) * (len(STEPS) + 1), 0.0)

            amounts = {"initial_loss": 9.0, "floor": 0.0, "tokens": 12_000, "steps": 1000, "budget_steps": 1000}
            found = tokens_to_loss(of_all, trials(loss[..., -1], rates, amounts), curve_of)
            truth = np.where(found["arm"] == LABELS[1], -mean, mean)
            low, high = (np.log(found[end]).tolist() for end in ("low", "high"))
            yield Coverage.of(f"log tokens-to-loss ratio: {what}", str(count), low, high, truth)


def law() -> Iterator[Coverage]:
    cases = (
        ("falls to 0, 4 values", 4, 0.0, 30.0, -0.7, False),
        ("falls to 0, 6 values", 6, 0.0, 30.0, -0.7, True),
        ("falls to 1.5, 5 values", 5, 1.5, 30.0, -0.7, True),
        ("falls to 1.5, 8 values", 8, 1.5, 30.0, -0.7, True),
        ("rises, 6 values", 6, 0.3, 0.05, 0.5, True),
    )
    for what, count, irreducible, coefficient, exponent, free in cases:
        x = 2.0 ** np.arange(5, 5 + count)
        mean = (irreducible + coefficient * x**exponent)[:, None]
        rng = np.random.default_rng(0)
        for noise, scale in (("2 % noise", 0.02 * mean), ("equal noise", np.full_like(mean, 0.02 * mean.mean()))):
            fits = []
            for _ in range(DRAWS):
                # Two rates, the other 3 % worse, and half of the noise shared by all that replicates hold.
                shared = 1 + 0.02 * rng.normal(size=3)
                seen = [(factor * mean * shared + scale * rng.normal(size=(count, 3))) for factor in (1, 1.03)]
                fits.append(fit_with_intervals(x, np.median(seen, axis=2).min(axis=0), free=free))
            kind = f"power law that {what}, {noise}"
            low, high = zip(*(fit.exponent_interval for fit in fits), strict=True)
            yield Coverage.of(f"exponent of a {kind}", "3", low, high, exponent)
            if free and irreducible:
                low, high = zip(*(fit.irreducible_interval for fit in fits), strict=True)
                yield Coverage.of(f"irreducible loss of a {kind}", "3", low, high, irreducible)


PARTS = {"paired": paired, "ratio": ratio, "law": law}


def main(names: Sequence[str]) -> None:
    print("| interval | replicates | known | coverage | median width | bar | |\n|---|---|---|---|---|---|---|")
    for name in names or PARTS:
        for one in PARTS[name]():
            print(one.row(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
