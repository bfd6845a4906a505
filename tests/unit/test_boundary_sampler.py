"""The boundary sampler through Optuna's own studies: what counts, what repeats, what a suggestion depends on."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import qmc

from isoloss.search import BoundaryMap, BoundarySampler
from isoloss.search.boundary import sampler as module
from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import Seen
from isoloss.search.boundary.space import Space

SQUARE: dict[str, BaseDistribution] = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)}
LINE: dict[str, BaseDistribution] = {"x": FloatDistribution(0.0, 1.0)}
GRID = np.stack(np.meshgrid(*[(np.arange(50) + 0.5) / 50] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
MIXED: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-4, 1e-1, log=True),
    "v": CategoricalDistribution([64, 256, 1024]),
    "depth": IntDistribution(1, 8, log=True),
    "head": CategoricalDistribution(["linear", "tied"]),
}
Params = Mapping[str, Any]

optuna.logging.set_verbosity(optuna.logging.ERROR)


def study_of(sampler: BoundarySampler, direction: Literal["minimize", "maximize"] = "minimize") -> optuna.Study:
    return optuna.create_study(sampler=sampler, direction=direction)


def run(study: optuna.Study, space: dict[str, BaseDistribution], value: Callable[[Params], float], count: int) -> None:
    for _ in range(count):
        trial = study.ask(space)
        study.tell(trial, value(trial.params))


def edge(x: Any) -> Any:
    return 0.5 + 0.25 * np.sin(5.0 * x)


def curved(params: Params) -> float:
    """A slope below y = 0.2, none below the edge, and a cliff beyond it."""
    return math.inf if params["y"] > edge(params["x"]) else 3.0 * (0.2 - params["y"])


def truth(points: Array) -> Array:
    return np.asarray((points[:, 1] >= 0.2) & (points[:, 1] <= edge(points[:, 0])))


def wrong(known: BoundaryMap) -> float:
    return float(((known.inside(GRID) > 0.5) != truth(GRID)).mean())


def finished(params: Params, space: dict[str, BaseDistribution], value: float | None, **other: Any) -> FrozenTrial:
    return create_trial(params=dict(params), distributions=space, value=value, **other)


def suggested(sampler: BoundarySampler, study: optuna.Study, space: dict[str, BaseDistribution], number: int) -> Params:
    """Return what a trial of this number would be suggested, without making it."""
    trial = create_trial(state=TrialState.RUNNING)
    trial.number = number
    return sampler.sample_relative(study, trial, space)


def values_of(study: optuna.Study) -> list[dict[str, Any]]:
    return [one.params for one in study.trials]


# --- studies of one kind of outcome


@pytest.mark.parametrize("value", [math.inf, -math.inf, -1.0, 7.0])
def test_all_trials_end_alike(value: float) -> None:
    sampler = BoundarySampler(0.0, space=MIXED, start=8)
    study = study_of(sampler)
    run(study, MIXED, lambda params: value, 12)
    assert module.FALLBACK not in study.user_attrs
    assert len({tuple(one.items()) for one in values_of(study)}) == 12
    share = sampler.map(study).inside(Space(MIXED).cover(np.random.default_rng(0).random((200, 4))))
    assert ((share < 0.5) == (value > 0)).all()


def test_a_threshold_that_is_never_crossed() -> None:
    sampler = BoundarySampler(-5.0, space=SQUARE)
    study = study_of(sampler)
    run(study, SQUARE, lambda params: params["x"] + 0.1 * params["y"], 18)
    known = sampler.map(study)
    assert known.inside(GRID).max() < 0.05
    assert known.error_volume < 0.01


def test_a_space_of_one_point() -> None:
    one: dict[str, BaseDistribution] = {
        "v": CategoricalDistribution([64]), "n": IntDistribution(4, 4, log=True), "x": FloatDistribution(0.3, 0.3),
        "lr": FloatDistribution(1e-3, 1e-3, log=True), "head": CategoricalDistribution(["tied"]),
    }  # fmt: skip
    study = study_of(BoundarySampler(0.0, space=one, start=2, most_repeats=1))
    run(study, one, lambda params: -1.0, 8)
    assert values_of(study) == [{"v": 64, "n": 4, "x": 0.3, "lr": 1e-3, "head": "tied"}] * 8
    assert module.FALLBACK not in study.user_attrs


def test_the_same_point_many_times() -> None:
    sampler = BoundarySampler(0.0, space=SQUARE, start=0)
    study = study_of(sampler)
    for value in (-0.1, 0.1, math.inf, -0.1) * 10:
        study.add_trial(finished({"x": 0.5, "y": 0.5}, SQUARE, value))
    run(study, SQUARE, curved, 5)
    assert module.FALLBACK not in study.user_attrs
    assert len(sampler.map(study).seen) == 45
    assert all(one != {"x": 0.5, "y": 0.5} for one in values_of(study)[40:])


# --- what counts


def test_failed_trials_say_nothing() -> None:
    sampler, fresh = BoundarySampler(0.0, space=SQUARE), BoundarySampler(0.0, space=SQUARE)
    rng = np.random.default_rng(0)
    with_failed, without = study_of(sampler), study_of(fresh)
    for i in range(30):
        params = dict(zip("xy", rng.random(2).tolist(), strict=True))
        if i % 10 < 3:
            with_failed.add_trial(finished(params, SQUARE, None, state=TrialState.FAIL))
        else:
            for study in (with_failed, without):
                study.add_trial(finished(params, SQUARE, curved(params)))
    for x, y in qmc.Sobol(2, rng=1).random(1024).tolist():  # wherever one would be worth a look
        with_failed.add_trial(finished({"x": x, "y": y}, SQUARE, None, state=TrialState.FAIL))
    assert len(sampler.map(with_failed).seen) == len(fresh.map(without).seen) == 21
    for number in (2001, 2002, 2003, 2004):
        assert suggested(sampler, with_failed, SQUARE, number) == suggested(fresh, without, SQUARE, number)


def test_failures_and_nan_while_optimizing() -> None:
    sampler = BoundarySampler(0.0, space=SQUARE)
    study = study_of(sampler)

    def objective(trial: optuna.Trial) -> float:
        params = {name: trial.suggest_float(name, 0.0, 1.0) for name in "xy"}
        if trial.number % 10 == 0:
            raise RuntimeError("a machine went away")
        return math.nan if trial.number % 10 < 3 else curved(params)

    study.optimize(objective, n_trials=20, catch=RuntimeError)
    assert Counter(one.state for one in study.trials) == {TrialState.COMPLETE: 14, TrialState.FAIL: 6}
    assert len(sampler.map(study).seen) == 14


def test_pruned_and_tagged_trials_tell_their_side() -> None:
    sampler = BoundarySampler(1.0, space=LINE)
    study = study_of(sampler)

    def add(x: float, value: float | None, state: TrialState = TrialState.COMPLETE, tag: str | None = None) -> None:
        attrs = {} if tag is None else {module.OUTCOME: tag}
        study.add_trial(finished({"x": x}, LINE, value, state=state, user_attrs=attrs))

    add(0.0, 1.5)
    add(0.1, None, TrialState.PRUNED)
    add(0.2, None, TrialState.PRUNED, "below")
    add(0.3, None, TrialState.FAIL, "above")
    add(0.4, None, TrialState.FAIL, "something else")
    add(0.5, 9.0, tag="below")
    add(0.6, -math.inf)
    seen = sampler.map(study).seen
    np.testing.assert_array_equal(seen.points_ND[:, 0], [0.0, 0.1, 0.2, 0.3, 0.5, 0.6])
    np.testing.assert_array_equal(seen.excess_N, [0.5, np.inf, -np.inf, np.inf, -np.inf, -np.inf])


def test_outcomes_alone_are_used_when_asked_for() -> None:
    sampler = BoundarySampler(1.0, space=LINE, observation="outcome")
    study = study_of(sampler)
    for x, value in ((0.1, 0.2), (0.2, 1.0), (0.8, 1.1), (0.9, 7.0)):
        study.add_trial(finished({"x": x}, LINE, value))
    known = sampler.map(study)
    np.testing.assert_array_equal(known.seen.excess_N, [-np.inf, -np.inf, np.inf, np.inf])
    assert known.slope is None


def test_pruning_while_optimizing_finds_the_edge() -> None:
    sampler = BoundarySampler(0.0, space=LINE)
    study = study_of(sampler)

    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_float("x", 0.0, 1.0) > 0.37:
            raise optuna.TrialPruned
        return -1.0

    study.optimize(objective, n_trials=20)
    inside = sampler.map(study).inside(np.linspace(0.0, 1.0, 1001)[:, None])
    assert (inside > 0.5).mean() == pytest.approx(0.37, abs=0.02)


def test_a_study_that_maximises_is_the_mirror_image() -> None:
    low, high = study_of(BoundarySampler(0.3, space=SQUARE)), study_of(BoundarySampler(-0.3, space=SQUARE), "maximize")
    run(low, SQUARE, curved, 16)
    run(high, SQUARE, lambda params: -curved(params), 16)
    assert values_of(low) == values_of(high)


# --- spaces


def test_every_kind_of_parameter() -> None:
    sampler = BoundarySampler(0.0, space=MIXED)

    def value(params: Params) -> float:
        end = 3e-2 / params["depth"] ** 0.5 * (1.0 if params["head"] == "tied" else 0.2) * (64 / params["v"]) ** 0.3
        return math.inf if params["lr"] > end else math.log10(1e-3 / params["lr"])

    study = study_of(sampler)
    run(study, MIXED, value, 30)
    assert module.FALLBACK not in study.user_attrs
    # The space, not independent sampling, gave every value.
    assert all(one.distributions == MIXED for one in study.trials)
    known = sampler.map(study)
    at = Space(MIXED).cover(np.asarray(qmc.Sobol(4, rng=5).random(512)))
    expected = np.array([value(known.space.point(row)) <= 0.0 for row in at])
    assert ((known.inside(at) > 0.5) == expected).mean() > 0.85


def test_without_a_space_it_is_what_finished_trials_share() -> None:
    sampler = BoundarySampler(0.0)
    study = study_of(sampler)

    def objective(trial: optuna.Trial) -> float:
        if trial.number == 1:
            raise RuntimeError("before any parameter")
        x = trial.suggest_float("x", 0.0, 1.0)
        y = trial.suggest_float("y", 0.0, 1.0)
        if trial.number == 2:
            trial.suggest_float("extra", 0.0, 1.0)
        return curved({"x": x, "y": y})

    study.optimize(objective, n_trials=20, catch=RuntimeError)
    assert sampler.infer_relative_search_space(study, study.trials[-1]) == SQUARE
    assert len(sampler.map(study).seen) == 19
    assert wrong(sampler.map(study)) < 0.15


def test_a_map_needs_a_finished_trial() -> None:
    for sampler in (BoundarySampler(), BoundarySampler(space=SQUARE)):
        with pytest.raises(ValueError, match="no trial has finished yet"):
            sampler.map(study_of(sampler))


def test_in_a_wider_range_earlier_trials_still_count() -> None:
    narrow: dict[str, BaseDistribution] = {"lr": FloatDistribution(1e-3, 1e-1, log=True)}
    wide: dict[str, BaseDistribution] = {"lr": FloatDistribution(1e-4, 1.0, log=True)}

    def value(params: Params) -> float:
        return math.inf if params["lr"] > 2e-2 else math.log10(3e-4 / params["lr"])

    study = study_of(BoundarySampler(space=narrow, start=4))
    run(study, narrow, value, 12)
    study.sampler = sampler = BoundarySampler(space=wide, start=4)
    known = sampler.map(study)
    assert len(known.seen) == 12
    np.testing.assert_array_equal(known.inside(known.space.encode([{"lr": 1e-2}, {"lr": 5e-2}])) > 0.5, [True, False])
    run(study, wide, value, 6)
    # Three parts of four were never visited before, and the band's lower end, 3e-4, is found in one of them.
    known = sampler.map(study)
    assert len(known.seen) == 18
    at = known.space.encode([{"lr": lr} for lr in (2e-4, 4.5e-4, 1e-2, 5e-2, 0.5)])
    np.testing.assert_array_equal(known.inside(at) > 0.5, [False, True, True, False, False])


def test_with_a_longer_list_earlier_trials_still_count() -> None:
    def space(*values: int) -> dict[str, BaseDistribution]:
        return {"lr": FloatDistribution(1e-4, 1e-1, log=True), "v": CategoricalDistribution(values)}

    def value(params: Params) -> float:
        return math.inf if params["lr"] > 1e-2 * (64 / params["v"]) ** 0.5 else -1.0

    study = study_of(BoundarySampler(space=space(64, 256), start=6))
    run(study, space(64, 256), value, 20)
    study.tell(study.ask(space(64, 256)), state=TrialState.PRUNED)
    longer = space(64, 256, 1024)
    sampler, fresh = (BoundarySampler(space=longer, start=6) for _ in range(2))
    # Optuna fixes the list of a study's categorical parameter, so that a longer one is a new study.
    continued = study_of(sampler)
    for one in study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]):
        continued.add_trial(finished(one.params, longer, one.value, state=one.state, user_attrs=one.user_attrs))
    known = sampler.map(continued)
    assert len(known.seen) == 21
    points = known.space.encode([{"lr": lr, "v": v} for lr in (2e-3, 3e-2) for v in (64, 256)])
    np.testing.assert_array_equal(known.inside(points) > 0.5, [True, True, False, False])
    asked = suggested(sampler, continued, longer, 21)
    assert asked != suggested(fresh, study_of(fresh), longer, 21)
    assert asked["v"] == 1024  # where nothing was tried


def test_parameters_without_a_place_in_the_space_are_left_out() -> None:
    space: dict[str, BaseDistribution] = {"v": CategoricalDistribution([64, 1024])}
    sampler = BoundarySampler(space=space)
    study = study_of(sampler)
    study.add_trial(finished({"v": "none"}, {"v": CategoricalDistribution(["none", 64])}, 1.0))
    study.add_trial(finished({"w": 1.0}, {"w": FloatDistribution(0.0, 1.0)}, 1.0))
    study.add_trial(finished({"v": 256}, {"v": CategoricalDistribution([256])}, 1.0))
    np.testing.assert_allclose(sampler.map(study).seen.points_ND, [[0.5]])


# --- repeats


@pytest.mark.parametrize(("most", "seed"), [(1, 0), (2, 0), (1, 1)])
def test_no_point_is_tried_more_often_than_allowed(most: int, seed: int) -> None:
    space: dict[str, BaseDistribution] = {"v": CategoricalDistribution([1, 4, 16]), "n": IntDistribution(1, 4)}
    study = study_of(BoundarySampler(space=space, most_repeats=most, explore_every=2, seed=seed))
    run(study, space, lambda params: params["v"] - 2.5 * params["n"], 12 * most)
    assert set(Counter(tuple(one.values()) for one in values_of(study)).values()) == {most}
    assert len(values_of(study)) == 12 * most
    run(study, space, lambda params: 0.0, 1)  # when none is left, all are allowed again


def test_the_sobol_sequence_does_not_miss_the_last_points() -> None:
    space: dict[str, BaseDistribution] = {"n": IntDistribution(0, 99)}
    study = study_of(BoundarySampler(space=space, most_repeats=1, start=100))
    run(study, space, lambda params: params["n"] - 50.5, 100)
    assert len({one["n"] for one in values_of(study)}) == 100


def test_running_trials_count_as_tried() -> None:
    space: dict[str, BaseDistribution] = {"n": IntDistribution(1, 12)}
    study = study_of(BoundarySampler(space=space, most_repeats=1, start=3))
    run(study, space, lambda params: params["n"] - 6.5, 4)
    asked = [study.ask(space).params["n"] for _ in range(8)]
    assert sorted([*asked, *(one["n"] for one in values_of(study)[:4])]) == list(range(1, 13))


def test_a_noisy_edge_is_looked_at_again() -> None:
    space: dict[str, BaseDistribution] = {"n": IntDistribution(1, 30)}
    study = study_of(BoundarySampler(space=space))
    rng = np.random.default_rng(3)
    run(study, space, lambda params: params["n"] - 15.5 + 5.0 * rng.standard_normal(), 30)
    count = Counter(one["n"] for one in values_of(study))
    assert max(count.values()) >= 2
    assert len(count) < 28


# --- what a suggestion depends on


def test_a_fresh_sampler_on_a_copied_study_suggests_the_same() -> None:
    study = study_of(BoundarySampler(space=SQUARE, seed=3))
    running: list[optuna.Trial] = []
    for i in range(20):  # finished out of order, two always running
        running.append(study.ask(SQUARE))
        if len(running) > 2:
            trial = running.pop(i % 2)
            study.tell(trial, curved(trial.params))
    copy = study_of(BoundarySampler(space=SQUARE, seed=3))
    copy.add_trials(study.trials)
    assert Counter(one.state for one in copy.trials)[TrialState.RUNNING] == 2
    for _ in range(3):
        assert study.ask(SQUARE).params == copy.ask(SQUARE).params


def test_other_questions_in_between_change_nothing() -> None:
    sampler, quiet = BoundarySampler(space=SQUARE), BoundarySampler(space=SQUARE)
    one, other = study_of(sampler), study_of(quiet)
    for _ in range(15):
        other_trial = create_trial(state=TrialState.RUNNING)
        other_trial.number = 7
        sampler.sample_independent(one, other_trial, "z", FloatDistribution(0.0, 1.0))
        if len(one.trials) % 5 == 4:
            suggested(sampler, one, SQUARE, 500)
        for study in (one, other):
            run(study, SQUARE, curved, 1)
    assert values_of(one) == values_of(other)
    other_trial.number = 15
    drawn = [
        each.sample_independent(study, other_trial, "z", FloatDistribution(0.0, 1.0))
        for each, study in ((sampler, one), (quiet, other))
    ]
    assert drawn[0] == drawn[1]


def test_seeds_differ() -> None:
    first, second = (study_of(BoundarySampler(space=SQUARE, seed=seed)) for seed in (0, 1))
    for study in (first, second):
        run(study, SQUARE, curved, 2)
    assert values_of(first) != values_of(second)


def test_parameters_outside_the_space_are_uniform_and_reproducible() -> None:
    draws = []
    for _ in range(2):
        study = study_of(BoundarySampler(space=LINE, start=100))
        for _ in range(100):
            trial = study.ask(LINE)
            trial.suggest_float("a", 0.0, 1.0)
            trial.suggest_float("b", 0.0, 1.0)
            study.tell(trial, 0.0)
        draws.append(np.array([[one["a"], one["b"]] for one in values_of(study)]))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.abs(draws[0].mean(0) - 0.5).max() < 5.0 * math.sqrt(1.0 / 1200)
    assert abs(np.corrcoef(draws[0].T)[0, 1]) < 0.5


def test_the_start_is_a_sobol_sequence() -> None:
    study = study_of(BoundarySampler(space=SQUARE, start=16))
    run(study, SQUARE, curved, 16)
    points = np.array([[one["x"], one["y"]] for one in values_of(study)])
    assert len(np.unique((points * 4).astype(int), axis=0)) == 16  # one in each of 4 x 4 cells


# --- many at once


def test_trials_that_run_repel_others() -> None:
    sampler = BoundarySampler(space=SQUARE, explore_every=100)
    study = study_of(sampler)
    run(study, SQUARE, curved, 16)
    alone = [suggested(sampler, study, SQUARE, 16 + i) for i in range(8)]
    together = [study.ask(SQUARE).params for _ in range(8)]
    apart = [
        np.linalg.norm(points[:, None] - points, axis=-1)[np.triu_indices(8, 1)]
        for points in (np.array([list(one.values()) for one in asked]) for asked in (alone, together))
    ]
    assert apart[1].min() > 0.02
    assert apart[1].max() > 0.5
    assert apart[1].min() > 3.0 * apart[0].min()


def test_a_trial_given_up_repels_no_longer() -> None:
    study = study_of(BoundarySampler(space=SQUARE, explore_every=1000))
    run(study, SQUARE, curved, 20)
    sampler = study.sampler
    assert isinstance(sampler, BoundarySampler)
    numbers = range(101, 109)
    before = [suggested(sampler, study, SQUARE, number) for number in numbers]
    lost = study.ask(SQUARE)
    while_running = [suggested(sampler, study, SQUARE, number) for number in numbers]
    study.tell(lost, state=TrialState.FAIL)
    assert while_running != before
    assert [suggested(sampler, study, SQUARE, number) for number in numbers] == before


def test_threads() -> None:
    study = study_of(BoundarySampler(space=SQUARE))

    def objective(trial: optuna.Trial) -> float:
        return curved({name: trial.suggest_float(name, 0.0, 1.0) for name in "xy"})

    study.optimize(objective, n_trials=15, n_jobs=3)
    assert all(one.state == TrialState.COMPLETE for one in study.trials)
    assert module.FALLBACK not in study.user_attrs


# --- cost


def test_between_equally_unknown_places_the_cheap_one_is_tried() -> None:
    def dear(trial: FrozenTrial) -> float:
        return 30.0 if trial.params["x"] > 0.5 else 1.0

    shares = []
    for cost in (None, dear):
        study = study_of(BoundarySampler(space=SQUARE, cost=cost, start=8, explore_every=100))
        run(study, SQUARE, lambda params: math.inf if params["y"] > 0.5 else -1.0, 20)
        shares.append(np.mean([one.params["x"] > 0.5 for one in study.trials[8:]]))
    assert 0.25 <= shares[0] <= 0.75
    assert shares[1] <= 0.25


def test_costs_may_be_unknown() -> None:
    study = study_of(BoundarySampler(space=SQUARE, cost=lambda trial: None))
    plain = study_of(BoundarySampler(space=SQUARE))
    for one in (study, plain):
        run(one, SQUARE, curved, 14)
    assert values_of(study) == values_of(plain)


# --- a fit that fails


def test_where_the_fit_fails_a_sobol_point_is_tried_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> BoundaryMap:
        raise np.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(module, "BoundaryMap", broken)
    sampler = BoundarySampler(space=SQUARE, start=4, explore_every=100)
    study = study_of(sampler)
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        run(study, SQUARE, curved, 7)
    assert study.user_attrs[module.FALLBACK] == 3
    assert [record.message for record in caplog.records] == [
        f"trial {number}: the fit did not succeed (not positive definite); it takes a Sobol point"
        for number in (4, 5, 6)
    ]  # fmt: skip
    sobol_only = study_of(BoundarySampler(space=SQUARE, start=100))
    run(sobol_only, SQUARE, curved, 7)
    assert values_of(study) == values_of(sobol_only)
    study.sampler = BoundarySampler(space=SQUARE, start=4, explore_every=100)
    run(study, SQUARE, curved, 1)
    assert study.user_attrs[module.FALLBACK] == 4  # counted for the study, whoever samples


# --- the loop closed


def test_thirty_trials_map_a_boundary_better_than_a_sobol_sequence() -> None:
    sampler = BoundarySampler(space=SQUARE)
    study = study_of(sampler)
    run(study, SQUARE, curved, 30)
    points = np.asarray(qmc.Sobol(2, rng=0).random(32))[:30]
    covered = BoundaryMap(Space(SQUARE), Seen(points, np.array([curved({"x": x, "y": y}) for x, y in points])))
    assert wrong(sampler.map(study)) < 0.03
    assert wrong(sampler.map(study)) < 0.8 * wrong(covered)


def test_twenty_trials_find_an_edge_to_a_hundredth() -> None:
    sampler = BoundarySampler(space=LINE)
    study = study_of(sampler)
    run(study, LINE, lambda params: math.inf if params["x"] > 0.618 else -1.0, 20)
    at = np.linspace(0.0, 1.0, 2001)[:, None]
    assert (sampler.map(study).inside(at) > 0.5).mean() == pytest.approx(0.618, abs=0.01)


# --- arguments


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threshold": math.nan}, "threshold must be finite, not nan"),
        ({"threshold": math.inf}, "threshold must be finite, not inf"),
        ({"observation": "binary"}, "observation must be 'value' or 'outcome', not 'binary'"),
        ({"start": -1}, "start must be at least 0, not -1"),
        ({"explore_every": 0}, "explore_every must be at least 1, not 0"),
        ({"most_repeats": 0}, "most_repeats must be at least 1, not 0"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoundarySampler(**wrong)


def test_now_and_then_a_point_near_the_edge_is_tried_again() -> None:
    study = study_of(BoundarySampler(space=SQUARE, most_repeats=2))
    run(study, SQUARE, curved, 48)
    points = [(one["x"], one["y"]) for one in values_of(study)]
    again = [number for number, point in enumerate(points) if point in points[:number]]
    assert {12, 22, 32, 42} <= set(again)  # after the start of 8: half way between the points of the sequence
    known = study.sampler.map(study)  # type: ignore[attr-defined]
    at = known.space.encode([{"x": x, "y": y} for x, y in (points[number] for number in (22, 32, 42))])
    assert known.error(at).min() > np.median(known.error(known.references_PD))
    once = study_of(BoundarySampler(space=SQUARE, most_repeats=1))
    run(once, SQUARE, curved, 32)
    assert len({(one["x"], one["y"]) for one in values_of(once)}) == 32
