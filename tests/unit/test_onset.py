"""Saturation onsets: curves of a known law, one hypothesis by brute force, and series whose turn is known."""

# N evaluations

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isoloss import AdamW, Choice, Decoder, Evaluation, Linear, LowRank, SpamLang, Steps, Study, WarmupStableDecay
from isoloss.analysis import onset_model
from isoloss.analysis.onset import COLUMNS, TURNS, clock_and_falls, onset, onset_table, turn
from isoloss.analysis.onset_model import OnsetModel
from isoloss.outcome import Curve
from isoloss.result import Result

STEPS = 5000
CONSTANT = WarmupStableDecay(warmup=0.0, decay=0.0)


def law(
    points: int,
    at: float = math.inf,
    after: float = 0.0,
    *,
    exponent: float = 0.4,
    floor: float = 2.0,
    noise: float = 0.003,
) -> Curve:
    """A power law that falls by about 3 and stops ``at`` a step, after which its slope is multiplied by ``after``."""
    steps = tuple(Evaluation(points=points).steps(STEPS))
    step_N = np.maximum(steps, 1).astype(float)
    until_N = np.minimum(step_N, at)
    loss_N = floor + 3 * until_N**-exponent
    if at < STEPS:
        loss_N += after * -3 * exponent * at**-exponent * np.log(step_N / until_N)
    loss_N += noise * np.random.default_rng(0).normal(size=len(steps))
    return Curve(steps, tuple(loss_N.tolist()), (10 * noise,) * len(steps), 0.0)


@pytest.mark.parametrize(("after", "kind"), [(0.0, "flattens"), (-1.0, "rises"), (-4.0, "rises")])
@pytest.mark.parametrize("at", [200.0, 1000.0])
def test_an_onset_is_found_where_the_law_stops(at: float, after: float, kind: str) -> None:
    found = onset(law(100, at, after, exponent=0.3), CONSTANT, STEPS)
    assert found["probability"] > 0.95
    assert found["low"] <= at <= found["high"]
    assert abs(math.log(found["onset_step"] / at)) < 0.25
    assert found["high"] / found["low"] < 3
    assert found["kind"] == kind


@pytest.mark.parametrize("exponent", [0.07, 0.25, 0.5, 1.2])
@pytest.mark.parametrize("points", [20, 100])
def test_a_power_law_that_levels_off_at_its_floor_has_none(exponent: float, points: int) -> None:
    found = onset(law(points, exponent=exponent), CONSTANT, STEPS)
    assert found["probability"] < 0.2
    assert found["kind"] == "none"
    assert math.isnan(found["onset_step"])


def test_an_early_fall_and_a_common_error_are_no_onset_and_hide_none() -> None:
    for curve, kind in ((law(100), "none"), (law(100, 1500.0, -1.0), "rises")):
        early = [4 * max(step, 1) ** -2.0 for step in curve.step]
        loss = tuple(loss + more + 0.5 for loss, more in zip(curve.loss, early, strict=True))
        found = onset(Curve(curve.step, loss, curve.standard_error, 0.0), CONSTANT, STEPS)
        assert found["kind"] == kind
    assert found["low"] <= 1500 <= found["high"]


def test_what_a_decay_brings_at_the_end_is_no_onset_and_hides_none() -> None:
    schedule = WarmupStableDecay(warmup=0.05, decay=0.3)
    factor = np.array([schedule.factor(step, STEPS) for step in range(STEPS)])
    fallen = np.cumsum(np.maximum(0, -np.diff([factor[0], *factor, factor[-1]])))
    for curve, kind in ((law(120), "none"), (law(120, 1500.0), "flattens")):
        loss = tuple(np.array(curve.loss) - 0.3 * fallen[list(curve.step)])
        found = onset(Curve(curve.step, loss, curve.standard_error, 0.0), schedule, STEPS)
        assert found["kind"] == kind
    assert found["low"] <= 1500 <= found["high"]


def test_clock_is_the_sum_of_learning_rates_and_what_a_decay_withholds_lowers_the_loss() -> None:
    schedule = WarmupStableDecay(warmup=0.2, decay=0.5)
    step_N = np.array([1.0, 10, 20, 50, 80, 100])
    factor = [schedule.factor(step, 100) for step in range(100)]
    clock_N, fall_RN = clock_and_falls(step_N, schedule, 100)
    assert clock_N == pytest.approx([sum(factor[: int(step)]) for step in step_N])
    # Of the linear decay of 50 steps, 29 or 30 are done at step 80; the area grows as the square.
    assert fall_RN[0] == pytest.approx([0, 0, 0, 0, 30 / 50, 1], abs=0.03)
    assert fall_RN[-1] == pytest.approx([0, 0, 0, 0, (30 / 50) ** 2, 1], abs=0.03)
    # Of a constant learning rate, an early fall by a steeper power, from the first evaluation on.
    assert clock_and_falls(step_N, CONSTANT, 100)[1][0] == pytest.approx(1 - step_N**-1.5)
    # A budget of more steps than are read, by its closed form: half the warm-up counts.
    clock_N, _ = clock_and_falls(np.array([200_000.0]), WarmupStableDecay(warmup=0.1, decay=0.0), 200_000)
    assert clock_N[0] == pytest.approx(190_000, rel=1e-3)


def test_few_evaluations_say_little_or_nothing() -> None:
    assert onset(law(8, 300.0), WarmupStableDecay(warmup=0.1, decay=0.0), STEPS)["kind"] == "unknown"
    noisy = onset(law(9, noise=0.5), CONSTANT, STEPS)
    assert 0.1 < noisy["probability"] < 0.5


def test_a_flat_curve_is_unknown_and_noise_around_it_no_onset() -> None:
    steps = tuple(range(1, 41))
    flat = Curve(steps, (3.0,) * 40, (0.1,) * 40, 0.0)
    assert onset(flat, CONSTANT, 40)["kind"] == "unknown"
    noise = tuple(3 + np.random.default_rng(1).normal(0, 0.01, 40))
    assert onset(Curve(steps, noise, (0.1,) * 40, 0.0), CONSTANT, 40)["probability"] < 0.5


def test_the_posterior_is_that_of_a_sum_over_all_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small grid by brute force: constrained least squares of each hypothesis by SciPy, whitened by Cholesky."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import lsq_linear
    from scipy.special import gammaln, logsumexp

    monkeypatch.setattr(onset_model, "EXPONENTS", np.array([0.2, 0.7]))
    monkeypatch.setattr(onset_model, "STEADY_EXPONENTS", np.array([0.2, 0.7]))
    monkeypatch.setattr(onset_model, "ONSETS", 3)
    monkeypatch.setattr(onset_model, "STARTS", (0.0, 0.3))
    monkeypatch.setattr(onset_model, "NOISES", ((0.0, 1.0), (2.0, 0.3)))
    random = np.random.default_rng(3)
    clock_N = np.geomspace(10, 1000, 14)
    decay_N = np.clip((clock_N - 500) / 500, 0, 1)
    # So noisy that no single hypothesis has all the weight.
    loss_N = clock_N**-0.3 - 0.02 * decay_N + 0.02 * random.normal(size=14)
    model = OnsetModel(clock_N, decay_N[None])
    log_N = np.log(clock_N)
    scaled = (loss_N - loss_N[0]) / np.ptp(loss_N)
    spread = (0.3 * 0.05 / np.ptp(loss_N)) ** 2
    steady: list[float] = []
    broken: list[tuple[float, float, bool]] = []
    for first in (0, int(np.argmax(log_N >= log_N[0] + 0.3 * (log_N[-1] - log_N[0])))):
        allowed = [at for at in model.onset_T if at >= log_N[first + 3] - 1e-9]
        for ratio, length in onset_model.NOISES:
            apart = np.abs(log_N[first:, None] - log_N[first:])
            root = np.linalg.cholesky(np.eye(14 - first) + ratio**2 * np.exp(-apart / length))
            for exponent in (0.2, 0.7):

                def marginal(trend_N: Any, first: int = first, root: Any = root) -> float:
                    design = np.stack([np.ones(14), trend_N, -decay_N], axis=1)[first:]
                    white = solve_triangular(root, np.column_stack([design, scaled[first:]]), lower=True)
                    fit = lsq_linear(white[:, :3], white[:, 3], ([-np.inf, 0, 0], np.inf), method="bvls", tol=1e-14)
                    freedom = 1 + 14 - first - 3
                    intercept = np.log(white[:, 0] @ white[:, 0]) / 2
                    student = gammaln(freedom / 2) - freedom / 2 * np.log(
                        np.pi * (2 * fit.cost + spread + freedom * 0.005**2)
                    )
                    return float(student - np.log(np.diag(root)).sum() - intercept)

                steady.append(marginal(np.exp(-exponent * log_N)) - math.log(2 * 2 * 2))
                for at in allowed:
                    for slope in onset_model.SLOPES:
                        until_N = np.minimum(log_N, at)
                        line_N = -slope * exponent * np.exp(-exponent * at) * (log_N - until_N)
                        value = marginal(np.exp(-exponent * until_N) + line_N)
                        broken.append((value - math.log(2 * 2 * 2 * 7 * len(allowed)), at, slope < 0))
    weights = np.array([weight for weight, _, _ in broken])
    odds = math.exp(logsumexp(weights) - logsumexp(steady)) / 3
    found = model.posterior(loss_N[None], np.array([0.05]))
    assert 0.01 < found.probability_K[0] < 0.99
    assert found.probability_K[0] == pytest.approx(odds / (1 + odds), rel=1e-5)
    share = np.exp(weights - logsumexp(weights))
    assert found.rises_K[0] == pytest.approx(share[[rises for _, _, rises in broken]].sum(), rel=1e-5)
    # Half of the weight lies about below the median: within the places' own share, which the spline spreads.
    heights = np.array([share[[at == place for _, at, _ in broken]].sum() for place in model.onset_T])
    place = int(np.argmax(np.cumsum(heights) >= 0.5))
    apart = model.onset_T[1] - model.onset_T[0]
    assert abs(math.log(found.onset_K[0]) - model.onset_T[place]) <= apart


@pytest.mark.parametrize(("mean", "width"), [(3.0, 0.5), (2.33, 0.1), (2.4, 0.12)])
def test_quantiles_are_those_of_a_normal_density_however_narrow(mean: float, width: float) -> None:
    model = OnsetModel(np.geomspace(1, 1000, 30), np.zeros((0, 30)))
    log_KT = -0.5 * ((model.onset_T - mean) / width)[None] ** 2
    low, middle, high = (math.log(value[0]) for value in model._interval(log_KT))
    apart = model.onset_T[1] - model.onset_T[0]
    assert middle == pytest.approx(mean, abs=0.15 * apart)
    assert (high - low) / 2 == pytest.approx(1.96 * width, rel=0.1)


def test_curves_are_judged_as_if_each_were_alone() -> None:
    model = OnsetModel(np.geomspace(1, 100, 20), np.zeros((0, 20)))
    loss_KN = np.stack([law(20, at).loss[:20] for at in (100.0, math.inf)])
    both = model.posterior(loss_KN, np.array([0.01, 0.02]))
    alone = [model.posterior(loss_KN[i : i + 1], np.array([[0.01, 0.02][i]])) for i in range(2)]
    assert both.probability_K == pytest.approx([one.probability_K[0] for one in alone])
    assert both.low_K == pytest.approx([one.low_K[0] for one in alone])


def test_a_series_turns_at_its_most_prominent_interior_extreme() -> None:
    steps = tuple(range(1, 101))
    hill = tuple(-((step - 40.0) ** 2) for step in steps)
    assert turn(steps, hill, 1, 0) == 40
    assert turn(steps, tuple(-value for value in hill), -1, 0) == 40
    assert math.isnan(turn(steps, hill, -1, 0))
    assert math.isnan(turn(steps, hill, 1, 50)), "what lies before the window is not looked at"
    assert turn(steps, (None, *hill[1:]), 1, 0) == 40
    assert math.isnan(turn(steps, (), 1, 0))
    # Monotone series with noise: no wiggle counts; with the hill: the noise moves it little.
    random = np.random.default_rng(0)
    noisy = [turn(steps, tuple(np.log(steps) + 0.02 * random.normal(size=100)), 1, 0) for _ in range(100)]
    assert sum(not math.isnan(step) for step in noisy) <= 5
    assert turn(steps, tuple(np.array(hill) + 5 * random.normal(size=100)), 1, 0) == pytest.approx(40, abs=5)


def study(**changes: Any) -> Study:
    parts: dict[str, Any] = {
        "name": "onsets",
        "question": "When does it saturate?",
        "task": SpamLang(vocab_size=16, sequence_length=5),
        "model": Decoder(width=16, depth=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3, schedule=CONSTANT),
        "budget": Steps(STEPS, batch_size=3),
        "axes": {"head": Choice(Linear(), LowRank(rank=2))},
        "replicates": 1,
    }
    return Study(**{**parts, **changes})


def test_the_table_has_a_row_a_trial_and_the_spectra_beside_it() -> None:
    one, curves = study(), {"linear()": law(80), "low_rank(2)": law(80, 400.0)}
    results, rows = {}, []
    for cell, trial in one.trials():
        label = cell["head"].label
        curve = curves[label]
        hill = tuple(-abs(math.log(max(step, 1) / 900)) for step in curve.step)
        results[trial.key] = Result(trial.key, trial.canonical, curve, {"head_entropy": hill})
        rows.append({"key": trial.key, "head": label, "replicate": 0})
    table = onset_table(one, pd.DataFrame(rows), results.__getitem__).set_index("head")
    assert table.loc["linear()", "kind"] == "none"
    assert math.isnan(table.loc["linear()", "onset_tokens"])
    row = table.loc["low_rank(2)"]
    assert row["kind"] == "flattens"
    assert row["low"] <= 400 <= row["high"]
    # A step trains on 3 sequences of 4 scored tokens.
    assert row["onset_tokens"] == pytest.approx(12 * row["onset_step"])
    assert row["head_entropy_turns"] == pytest.approx(900, rel=0.15)
    assert math.isnan(row["anisotropy_turns"])


def test_a_loss_that_flattens_at_a_known_floor_has_learned_all_and_is_not_judged_there() -> None:
    one = study()
    _, trial = next(one.trials())
    curve = law(80, 400.0, floor=-3 * 400**-0.4)  # flat at an excess of 0
    result = Result(trial.key, trial.canonical, curve, {})
    row = {"key": trial.key, "head": "linear()", "replicate": 0}
    assert onset(curve, CONSTANT, STEPS)["kind"] == "flattens"
    assert onset_table(one, pd.DataFrame([row]), lambda key: result).loc[0, "kind"] == "none"
    # Nor is one that met a non-finite number at its first update.
    result = Result(trial.key, trial.canonical, Curve((0,), (2.8,), (0.1,), 0.0, "nonfinite"), {})
    assert onset_table(one, pd.DataFrame([row]), lambda key: result).loc[0, "kind"] == "unknown"


def test_without_trials_the_table_has_all_columns() -> None:
    empty = pd.DataFrame(columns=["key", "head", "replicate", "outcome"])
    table = onset_table(study(), empty, SimpleNamespace)  # type: ignore[arg-type]
    assert list(table.columns) == ["head", "replicate", "key", *COLUMNS]
    assert {f"{name}_turns" for name in TURNS} <= set(COLUMNS)
