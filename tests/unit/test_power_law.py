"""Power laws: exact ones come back; intervals and errors agree with SciPy's general least squares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq, least_squares
from scipy.stats import f as f_distribution

from isoloss import AdamW, Choice, Decoder, Linear, Log, LowRank, Random, SpamLang, Steps, Study
from isoloss.analysis.power_law import COLUMNS, leave_one_out, power_law_table
from isoloss.analysis.power_law_fit import Floats, PowerLaw, fit, fit_with_intervals

RATE, SIZE = "optimizer.learning_rate", "task.vocab_size"
X = 2.0 ** np.arange(4, 10)
NOISE = np.array([0.02, -0.03, 0.01, 0.02, -0.02, 0.01])


@pytest.mark.parametrize(
    ("irreducible", "coefficient", "exponent"),
    [(1.5, 30.0, -0.7), (0.0, 0.3, 0.4), (0.0, 8.0, -1.3), (0.2, 1e-4, 1.6), (2.0, 1.0, -0.123)],
)
def test_exact_laws_come_back(irreducible: float, coefficient: float, exponent: float) -> None:
    law = fit(X, irreducible + coefficient * X**exponent, free=True)
    assert (law.exponent, law.coefficient) == pytest.approx((exponent, coefficient), rel=1e-5)
    assert law.irreducible == pytest.approx(irreducible, abs=1e-5)
    assert law.r2 == pytest.approx(1.0)
    assert law.at(3.0) == pytest.approx(irreducible + coefficient * 3.0**exponent, rel=1e-5)


def squares(loss: Floats, fixed: dict[int, float], free: bool, starts: PowerLaw) -> float:
    """Return the least sum of squared relative errors with some of (exponent, log A, E) fixed, by SciPy."""
    places = [i for i in range(3 if free else 2) if i not in fixed]

    def errors(values: Floats) -> Floats:
        all_of = np.zeros(3)
        all_of[list(fixed)], all_of[places] = list(fixed.values()), values
        return np.asarray(1 - (all_of[2] + np.exp(all_of[1] + all_of[0] * np.log(X))) / loss)

    start = np.array([starts.exponent, math.log(starts.coefficient), starts.irreducible])
    low = np.array([-6.0, -np.inf, 0.0])[places]
    solved = least_squares(errors, np.maximum(start[places], low), bounds=(low, np.inf), xtol=1e-12, ftol=1e-12)
    return 2 * float(solved.cost)


@pytest.mark.parametrize(
    ("loss", "free"),
    [
        ((1.5 + 30 * X**-0.7) * (1 + NOISE), True),
        ((0.3 * X**0.4) * (1 + NOISE), True),
        ((30 * X**-0.7) * (1 + 2 * NOISE), False),
    ],
)
def test_intervals_are_those_of_a_general_profile(loss: Floats, free: bool) -> None:
    law = fit_with_intervals(X, loss, free=free)
    df = len(X) - (3 if free else 2)
    cut = squares(loss, {}, free, law) * (1 + f_distribution.ppf(0.95, 1, df) / df)

    def end(place: int, best: float, far: float, shown: Callable[[float], float]) -> float:
        return shown(brentq(lambda value: squares(loss, {place: value}, free, law) - cut, best, far, xtol=1e-5))

    log_a = math.log(law.coefficient)
    identity = float
    assert law.exponent_interval.low == pytest.approx(end(0, law.exponent, law.exponent - 1, identity), abs=1e-4)
    assert law.exponent_interval.high == pytest.approx(end(0, law.exponent, law.exponent + 1, identity), abs=1e-4)
    assert law.coefficient_interval.low == pytest.approx(end(1, log_a, log_a - 4, math.exp), rel=2e-3)
    assert law.coefficient_interval.high == pytest.approx(end(1, log_a, log_a + 4, math.exp), rel=2e-3)
    if free:
        high = end(2, law.irreducible, law.irreducible + 1, identity)
        low = 0.0 if squares(loss, {2: 0.0}, free, law) < cut else end(2, law.irreducible, 0.0, identity)
        assert law.irreducible_interval == pytest.approx((low, high), abs=1e-3)
    else:
        assert (law.irreducible, law.irreducible_interval.low) == (0.0, pytest.approx(math.nan, nan_ok=True))


def test_what_a_constant_fits_has_no_interval() -> None:
    law = fit_with_intervals(X, 2.0 * (1 + NOISE), free=True)
    assert all(map(math.isnan, (*law.exponent_interval, *law.coefficient_interval, *law.irreducible_interval)))
    exact = fit_with_intervals(X[:3], 1.5 + 30 * X[:3] ** -0.7, free=True)
    assert all(map(math.isnan, exact.exponent_interval)), "three points leave no degree of freedom"


def test_a_step_has_no_end_on_its_steep_side() -> None:
    law = fit_with_intervals(X, np.array([9.0, 1.0, 1.01, 0.99, 1.0, 1.01]), free=True)
    assert math.isnan(law.exponent_interval.low)
    assert law.exponent_interval.high < -3
    assert all(map(math.isnan, (*law.coefficient_interval, *law.irreducible_interval)))


def test_leave_one_out_is_the_error_of_straight_lines_in_logarithms() -> None:
    """Nearly: with small noise, least relative errors are least squares of logarithms."""
    loss = 30 * X**-0.7 * (1 + 0.1 * NOISE)
    errors = []
    for i in range(len(X)):
        slope, level = np.polyfit(np.log(np.delete(X, i)), np.log(np.delete(loss, i)), 1)
        errors.append(abs(math.exp(level + slope * math.log(X[i])) / loss[i] - 1))
    assert leave_one_out(X, loss, free=False) == pytest.approx(np.median(errors), rel=0.02)


def study(**changes: Any) -> Study:
    parts: dict[str, Any] = {
        "name": "law",
        "question": "How does the loss rise with V?",
        "task": SpamLang(vocab_size=16, sequence_length=4),
        "model": Decoder(width=16, depth=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(20, batch_size=4),
        "axes": {
            SIZE: Choice(*(int(x) for x in X)),
            "head": Choice(Linear(), LowRank(rank=2)),
            RATE: Choice(1e-3, 1e-2),
        },
        "replicates": 3,
    }
    return Study(**{**parts, **changes})


def trials(law: Callable[[str, int], float]) -> pd.DataFrame:
    """Return a table in which one rate, another for every V, is better; one replicate of three diverges."""
    rows = [
        {SIZE: int(x), "head": head, RATE: rate, "replicate": i, "initial_loss": 100.0, "floor": 1.0,
         "capped_excess": 99.0 if i == 2 else law(head, int(x)) * (1.0 if (rate == 1e-3) == (n % 2 == 0) else 3.0)}
        for n, x in enumerate(X) for head in ("linear()", "low_rank(2)") for rate in (1e-3, 1e-2) for i in range(3)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_each_combination_of_the_other_axes_has_its_law_at_its_best_rates() -> None:
    laws = {"linear()": (0.5, 0.4), "low_rank(2)": (0.1, 0.9)}
    table = trials(lambda head, x: laws[head][0] * float(x) ** laws[head][1])
    # The median of three replicates, one of which diverged, is the larger of the two others: here they are equal.
    found = power_law_table(study(), table)
    assert list(found) == ["axis", SIZE, "head", *COLUMNS]
    assert found["axis"].tolist() == [SIZE, SIZE]
    assert found[SIZE].isna().all()
    for row in found.to_dict("records"):
        coefficient, exponent = laws[row["head"]]
        assert (row["exponent"], row["coefficient"]) == pytest.approx((exponent, coefficient), rel=1e-5)
        assert (row["points"], row["untrained"], row["irreducible_free"]) == (6, 0, True)
        assert row["leave_one_out"] < 1e-6


def test_losses_that_never_left_their_initial_one_are_no_points() -> None:
    table = trials(lambda head, x: 0.5 * float(x) ** 0.4 if x < 256 else 99.0)
    found = power_law_table(study(), table)
    assert found[["points", "untrained"]].to_numpy().tolist() == [[4, 2], [4, 2]]
    assert not found["irreducible_free"].any()
    assert found["exponent"].tolist() == pytest.approx([0.4, 0.4])
    assert found["irreducible_low"].isna().all()
    assert not len(power_law_table(study(), trials(lambda head, x: 0.5 if x < 128 else 99.0)))


def test_values_without_a_trial_at_every_rate_wait() -> None:
    table = trials(lambda head, x: 0.5 * float(x) ** 0.4)
    missing = (table[SIZE] == 16) & (table[RATE] == 1e-2) & (table["head"] == "linear()")
    assert power_law_table(study(), table[~missing])["points"].tolist() == [5, 6]
    assert list(power_law_table(study(), table.iloc[:0])) == ["axis", SIZE, "head", *COLUMNS]


def test_scattered_trials_and_parts_have_no_law() -> None:
    table = trials(lambda head, x: 0.5 * float(x) ** 0.4)
    axes = {SIZE: Choice(16, 32, 64, 128), "head": Choice(Linear(), LowRank(rank=2)), RATE: Log(1e-4, 1e-1)}
    assert not len(power_law_table(study(axes=axes, search=Random(cells=9)), table))
    heads = Choice(Linear(), *(LowRank(rank=rank) for rank in (2, 4, 8)))
    assert not len(power_law_table(study(axes={"head": heads, RATE: Choice(1e-3, 1e-2)}), table))
