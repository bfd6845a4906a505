"""The space as a cube, the map of known boundaries, what trials cost, and when a map is good enough."""

from __future__ import annotations

import ast
import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.stats import norm, qmc

from isoloss.search.boundary.cost import CostModel
from isoloss.search.boundary.kernel import Array
from isoloss.search.boundary.map import MOST_CONDITIONED, BoundaryMap, Seen, references
from isoloss.search.boundary.space import Dimension, Space
from isoloss.search.boundary.stopping import Check, check, checkpoints, places, reason_to_stop

RNG = np.random.default_rng
UNIT = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)}
EVERY_KIND: dict[str, BaseDistribution] = {
    "float": FloatDistribution(-2.0, 3.0),
    "log float": FloatDistribution(10**-3.5, 10**-0.5, log=True),
    "thirds": FloatDistribution(1.0 / 3.0, 2.0 / 3.0),
    "stepped": FloatDistribution(0.1, 0.9, step=0.2),
    "int": IntDistribution(-1, 5),
    "stepped int": IntDistribution(2, 14, step=4),
    "log int": IntDistribution(1, 300, log=True),
    "list": CategoricalDistribution([4, 1, 2.5]),
    "wide list": CategoricalDistribution([1024, 64, 256]),
    "names": CategoricalDistribution(["a", None, True, 3]),
    "one float": FloatDistribution(0.3, 0.3),
    "one log float": FloatDistribution(0.3, 0.3, log=True),
    "one int": IntDistribution(4, 4),
    "one log int": IntDistribution(4, 4, log=True),
    "one value": CategoricalDistribution([64]),
    "one name": CategoricalDistribution(["a"]),
}

# --- space


@pytest.mark.parametrize("name", EVERY_KIND)
def test_covered_values_are_in_the_distribution_and_encode_to_where_they_came_from(name: str) -> None:
    distribution = EVERY_KIND[name]
    one = Dimension.of(distribution)
    coordinates = one.cover(np.concatenate([[0.0, 1.0 - 1e-12], RNG(0).random(200)]))
    for coordinate in coordinates:
        value = one.value(coordinate)
        assert distribution._contains(distribution.to_internal_repr(value)), value
        assert one.encode(value) == pytest.approx(coordinate, abs=1e-9)
    if not one.unordered:
        assert coordinates.min() >= 0.0
        assert coordinates.max() <= 1.0


@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_coordinate_of_the_cube_has_a_value_of_the_distribution(name: str) -> None:
    distribution = EVERY_KIND[name]
    one = Dimension.of(distribution)
    for coordinate in [0.0, 1.0] if one.unordered and one.size > 1 else [0.0] if one.unordered else [0.0, 0.37, 1.0]:
        assert distribution._contains(distribution.to_internal_repr(one.value(coordinate)))


@pytest.mark.parametrize(
    ("distribution", "coordinate_of"),
    [
        (FloatDistribution(-2.0, 3.0), {-2.0: 0.0, 0.5: 0.5, 3.0: 1.0, 8.0: 2.0}),
        (FloatDistribution(1e-4, 1e-1, log=True), {1e-4: 0.0, 1e-3: 1.0 / 3.0, 1e-1: 1.0, 1.0: 4.0 / 3.0}),
        (IntDistribution(2, 14, step=4), {2: 0.0, 6: 1.0 / 3.0, 14: 1.0}),
        (IntDistribution(1, 256, log=True), {1: 0.0, 16: 0.5, 256: 1.0}),
        # Order is by value, whatever the list's; 8 times apart is spaced by the logarithm, less is not.
        (CategoricalDistribution([8, 1, 2]), {1: 0.0, 2: 1.0 / 3.0, 8: 1.0, 64: 2.0}),
        (CategoricalDistribution([7, 1, 4]), {1: 0.0, 4: 0.5, 7: 1.0}),
        (CategoricalDistribution([-4, 100]), {-4: 0.0, 48: 0.5, 100: 1.0}),
        (CategoricalDistribution([0, 100]), {0: 0.0, 1: 0.01}),
        (CategoricalDistribution(["b", "a", 3]), {"b": 0.0, "a": 1.0, 3: 2.0}),
    ],
)
def test_coordinates(distribution: BaseDistribution, coordinate_of: dict[Any, float]) -> None:
    one = Dimension.of(distribution)
    for value, coordinate in coordinate_of.items():
        assert one.encode(value) == pytest.approx(coordinate)


def test_values_without_a_place_are_refused() -> None:
    for distribution, value in [
        (CategoricalDistribution(["a", "b"]), "c"),
        (CategoricalDistribution([1, 64]), "a"),
        (CategoricalDistribution([1, 2]), None),
        (FloatDistribution(0.1, 1.0, log=True), -1.0),
    ]:
        with pytest.raises(ValueError):  # noqa: PT011
            Dimension.of(distribution).encode(value)
    with pytest.raises(ValueError, match="knows float, int and categorical"):
        Dimension.of(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["stepped", "int", "stepped int", "list", "wide list", "names"])
def test_cover_is_uniform_over_values(name: str) -> None:
    one = Dimension.of(EVERY_KIND[name])
    size = int(one.size)
    found, count = np.unique(one.cover((np.arange(100 * size) + 0.5) / (100 * size)), return_counts=True)
    np.testing.assert_array_equal(count, np.full(size, 100))
    np.testing.assert_allclose(found, np.sort(one.each()), atol=1e-12)


def test_cover_of_a_logarithmic_int_gives_each_number_its_stretch_of_the_logarithm() -> None:
    one = Dimension.of(IntDistribution(1, 8, log=True))
    values = np.array([one.value(x) for x in one.cover((np.arange(100_000) + 0.5) / 100_000)])
    for number in range(1, 9):
        expected = math.log((number + 0.5) / (number - 0.5)) / math.log(8.5 / 0.5)
        assert (values == number).mean() == pytest.approx(expected, abs=1e-4)


def test_every_is_every_point_once() -> None:
    space = Space({name: EVERY_KIND[name] for name in ("stepped", "wide list", "names", "one log int")})
    assert space.size == 5 * 3 * 4
    found = [tuple(space.point(row).values()) for row in space.every()]
    expected = itertools.product([0.1, 0.3, 0.5, 0.7, 0.9], [64, 256, 1024], ["a", None, True, 3], [4])
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    numbers = Space({"n": IntDistribution(1, 10, log=True)})
    assert [numbers.point(row)["n"] for row in numbers.every()] == list(range(1, 11))


@pytest.mark.parametrize(
    ("name", "size"), [("float", math.inf), ("stepped", 5), ("int", 7), ("stepped int", 4), ("log int", 300),
                       ("wide list", 3), ("names", 4), ("one float", 1), ("one log float", 1), ("one log int", 1)],
)  # fmt: skip
def test_sizes(name: str, size: float) -> None:
    assert Dimension.of(EVERY_KIND[name]).size == size


def test_space_without_parameters() -> None:
    space = Space({})
    assert space.size == 1
    assert space.every().shape == (1, 0)
    assert space.cover(np.zeros((3, 0))).shape == (3, 0)
    assert space.encode([{}, {}]).shape == (2, 0)
    assert space.point(np.zeros(0)) == {}


def test_references_cover_the_space_evenly() -> None:
    assert len(references(Space({"a": EVERY_KIND["int"], "b": EVERY_KIND["names"]}))) == 28
    found = references(Space(UNIT))
    np.testing.assert_array_equal(found, references(Space(UNIT)))
    # 1024 points of a Sobol sequence have the same number in every one of 32 x 32 cells.
    cells = np.unique((found * 32).astype(int), axis=0)
    assert len(cells) == 1024


# --- what trials say


def test_readings_beyond_the_cap_only_tell_the_side() -> None:
    seen = Seen(np.arange(7.0)[:, None], np.array([-4.0, -2.0, -0.5, 1.0, 2.5, np.inf, -np.inf]))
    assert seen.cap() == 2.5  # three quarters of the way through 0.5, 1, 2, 2.5, 4
    crowd = Seen(np.zeros((232, 1)), np.concatenate([np.full(32, 2.0), np.full(200, 0.01)]))
    assert crowd.cap() == 2.0  # however many come to lie close by
    np.testing.assert_array_equal(seen.of_cliff(2.0).side_N, [-1, -1, -1, -1, 1, 1, -1])
    slope = seen.of_slope(2.0)
    np.testing.assert_array_equal(slope.points_ND[:, 0], [0.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(slope.value_N, [-1.0, -1.0, -0.25, 0.5])
    np.testing.assert_array_equal(slope.side_N, [-1, 0, 0, 0])
    assert Seen(np.zeros((2, 1)), np.array([np.inf, -np.inf])).cap() == 1.0
    assert Seen(np.zeros((2, 1)), np.zeros(2)).cap() == 1.0


# --- maps of known boundaries


def edge(x: Array) -> Array:
    """The learning rate's stand-in y converges between a slope that it must climb and a cliff."""
    return 0.55 + 0.3 * np.sin(4.0 * x)


def band_excess(points: Array) -> Array:
    """Return a smooth excess that falls towards the cliff at ``edge``, and beyond it no loss at all."""
    return np.where(points[:, 1] > edge(points[:, 0]), np.inf, 3.0 * (0.2 - points[:, 1]))


def inside(points: Array) -> NDArray[np.bool_]:
    return (points[:, 1] <= edge(points[:, 0])) & (points[:, 1] >= 0.2)


GRID = np.stack(np.meshgrid(*[(np.arange(60) + 0.5) / 60] * 2, indexing="ij"), axis=-1).reshape(-1, 2)


def sobol(count: int, seed: int = 0) -> Array:
    return np.asarray(qmc.Sobol(2, rng=seed).random(count))


@pytest.fixture(scope="module")
def plenty() -> BoundaryMap:
    points = sobol(256)
    return BoundaryMap(Space(UNIT), Seen(points, band_excess(points)))


def test_a_map_of_plenty_of_data_is_right_and_knows_it(plenty: BoundaryMap) -> None:
    wrong = float(((plenty.inside(GRID) > 0.5) != inside(GRID)).mean())
    assert wrong < 0.02
    assert plenty.error_volume < 0.03
    assert wrong <= 1.5 * plenty.error_volume
    np.testing.assert_allclose(plenty.error(GRID), np.minimum(plenty.inside(GRID), 1.0 - plenty.inside(GRID)))


def test_readings_place_the_slope_where_sides_alone_do_not() -> None:
    points = sobol(32)
    near = np.abs(GRID[:, 1] - 0.2) < 0.1
    read = BoundaryMap(Space(UNIT), Seen(points, band_excess(points)))
    blind = BoundaryMap(Space(UNIT), Seen(points, np.where(inside(points), -np.inf, np.inf)))
    assert blind.slope is None
    wrong, blind_wrong = (((one.inside(GRID) > 0.5) != inside(GRID))[near].mean() for one in (read, blind))
    assert wrong < 0.01
    assert blind_wrong > 0.05


def test_draws_and_chance_are_the_share_of_seeds_that_converge(plenty: BoundaryMap) -> None:
    at = np.array([[0.1, 0.4], [0.5, 0.8], [0.5, 0.86], [0.3, 0.2]])
    draws = plenty.draws(at, 20_000, RNG(0))
    assert draws.shape == (20_000, 4)
    # The mean of the drawn shares is the chance that a new trial converges.
    np.testing.assert_allclose(draws.mean(0), plenty.chance(at), atol=5.0 * 0.5 / math.sqrt(20_000))
    (cliff, cliff_variance), (slope, slope_variance) = plenty.marginals(at)
    assert plenty.slope is not None
    expected = norm.cdf(-cliff / np.sqrt(cliff_variance + 1.0)) * norm.cdf(
        -slope / np.sqrt(slope_variance + plenty.slope.prior.noise**2)
    )
    np.testing.assert_allclose(plenty.chance(at), expected, rtol=1e-12)
    expected = norm.cdf(-cliff / np.sqrt(cliff_variance)) * norm.cdf(-slope / np.sqrt(slope_variance))
    np.testing.assert_allclose(plenty.inside(at), expected, rtol=1e-12)


def test_a_map_on_a_base_takes_its_priors_and_agrees_with_one_from_scratch(plenty: BoundaryMap) -> None:
    base = BoundaryMap(plenty.space, plenty.seen[:200])
    more = BoundaryMap(plenty.space, plenty.seen, base)
    assert more.priors is base.priors
    assert more.cap == base.cap
    assert len(more.standing) == 256
    assert np.abs(more.inside(GRID) - plenty.inside(GRID)).mean() < 0.01


def test_of_many_trials_a_map_stands_on_those_near_the_boundary() -> None:
    points = sobol(1024, seed=2)
    known = BoundaryMap(Space(UNIT), Seen(points, band_excess(points)))
    assert len(known.standing) == MOST_CONDITIONED

    def near(points: Array) -> float:
        return float((np.abs(points[:, 1] - edge(points[:, 0])) < 0.05).mean())

    assert near(known.standing.points_ND) > 1.5 * near(points)
    assert float(((known.inside(GRID) > 0.5) != inside(GRID)).mean()) < 0.02
    more = BoundaryMap(known.space, known.seen + Seen(points[:3] * 0.5, np.ones(3)), known)
    assert len(more.standing) == MOST_CONDITIONED + 3


@pytest.mark.parametrize("value", [np.inf, -np.inf, -1.0, 1.0])
def test_where_all_trials_end_alike_the_map_says_so(value: float) -> None:
    points = sobol(32, seed=3)
    known = BoundaryMap(Space(UNIT), Seen(points, np.full(32, value)))
    chance = known.inside(GRID)
    assert (chance > 0.5).mean() in (0.0, 1.0)
    assert (chance > 0.5).all() == (value < 0)
    assert known.error_volume < 0.1


def test_expected_error_is_honest_over_many_maps() -> None:
    """True error is at most 1.5 times the expected one for the most, and on average no larger."""
    ratios = []
    for seed in range(6):
        points = sobol(64, seed=10 + seed)
        known = BoundaryMap(Space(UNIT), Seen(points, band_excess(points)))
        ratios.append(float(((known.inside(GRID) > 0.5) != inside(GRID)).mean()) / known.error_volume)
    assert np.mean(ratios) < 1.0
    assert max(ratios) < 1.5


def test_unordered_choices_borrow_little_from_each_other() -> None:
    space = Space({"head": CategoricalDistribution(["linear", "tied"]), "y": FloatDistribution(0.0, 1.0)})
    y = np.tile((np.arange(30) + 0.5) / 30, 2)
    code = np.repeat([0.0, 1.0], 30)
    known = BoundaryMap(space, Seen(np.column_stack([code, y]), np.where(y > 0.3 + 0.4 * code, np.inf, -1.0)))
    at = (np.arange(100) + 0.5) / 100
    for head, end in ((0.0, 0.3), (1.0, 0.7)):
        right = known.inside(np.column_stack([np.full(100, head), at])) > 0.5
        assert right.mean() == pytest.approx(end, abs=0.03)


# --- cost


def test_predicted_cost_follows_what_trials_cost(plenty: BoundaryMap) -> None:
    points = plenty.seen.points_ND
    cost = np.exp(1.5 * points[:, 0])
    found = CostModel(plenty, points, cost).of(GRID)
    expected = np.exp(1.5 * GRID[:, 0] - np.log(cost).mean())
    np.testing.assert_allclose(found, expected, rtol=0.05)
    scaled = CostModel(plenty, points, 1000.0 * cost).of(GRID)
    np.testing.assert_allclose(scaled, found, rtol=1e-9)


def test_unknown_costs_are_left_out_and_few_say_nothing(plenty: BoundaryMap) -> None:
    points, cost = plenty.seen.points_ND[:10], np.full(10, np.nan)
    cost[:3] = [1.0, 5.0, 9.0]
    np.testing.assert_array_equal(CostModel(plenty, points, cost).of(GRID), np.ones(len(GRID)))
    cost[3:6] = [2.0, -1.0, np.inf]
    kept = CostModel(plenty, points[:4], cost[:4]).of(GRID)
    np.testing.assert_allclose(CostModel(plenty, points, cost).of(GRID), kept)


def test_costs_are_not_extrapolated_beyond_what_was_seen(plenty: BoundaryMap) -> None:
    points = plenty.seen.points_ND[plenty.seen.points_ND[:, 0] < 0.3]
    cost = np.exp(10.0 * points[:, 0])
    found = CostModel(plenty, points, cost).of(GRID)
    assert found.max() == pytest.approx(cost.max() / cost.min())
    assert found.min() >= cost.min() / cost.max()


def test_failing_early_is_cheap(plenty: BoundaryMap) -> None:
    points = plenty.seen.points_ND
    cost = np.where(np.isinf(plenty.seen.excess_N), 1.0, 10.0)
    found = CostModel(plenty, points, cost).of(np.array([[0.4, 0.3], [0.4, 0.99]]))
    assert found[0] > 5.0 * found[1]


# --- stopping


@pytest.mark.parametrize(("finished", "expected"), [(3, []), (4, [4]), (15, [4, 8, 12]), (20, [4, 8, 12, 16, 20])])
def test_checkpoints(finished: int, expected: list[int]) -> None:
    assert checkpoints(finished) == expected


def test_checkpoints_of_long_searches_are_a_sixteenth_apart() -> None:
    assert checkpoints(145)[-4:] == [124, 128, 136, 144]
    steps = [more - count for count, more in itertools.pairwise(checkpoints(5000))]
    assert all(step % 4 == 0 for step in steps)
    for count, step in zip(checkpoints(5000)[16:], steps[16:], strict=False):
        assert count / 16 - 4 <= step <= count / 16


def test_places_are_combinations_of_the_others() -> None:
    space = Space({
        "lr": FloatDistribution(1e-4, 1e-1, log=True), "v": CategoricalDistribution([64, 256, 1024]),
        "head": CategoricalDistribution(["a", "b"]),
    })  # fmt: skip
    assert places(space, "lr") == [{"v": v, "head": head} for v in (64, 256, 1024) for head in ("a", "b")]
    assert places(Space({"lr": space_of_lr()}), "lr") == [{}]
    line = places(Space({"lr": space_of_lr(), "x": FloatDistribution(0.0, 1.0)}), "lr")
    np.testing.assert_allclose([one["x"] for one in line], (np.arange(12) + 0.5) / 12)
    many = {f"x{i}": FloatDistribution(0.0, 1.0) for i in range(5)}
    assert len(places(Space({"lr": space_of_lr(), **many}), "lr")) == 1
    assert len(places(Space({"lr": space_of_lr(), "a": many["x0"], "b": many["x1"]}), "lr")) == 9


def space_of_lr() -> FloatDistribution:
    return FloatDistribution(1e-4, 1e-1, log=True)


@pytest.mark.parametrize(
    ("checks", "earlier", "expected"),
    [
        ([(0.03, 0.2)] * 3, [(0.06, 0.2)] * 2, "known"),
        ([(0.04, 0.25)] * 3, [(0.06, 0.2)] * 2, "known"),  # at the limits
        ([(0.03, None)] * 3, [(0.06, None)] * 2, "known"),
        ([(0.03, 0.2), (0.05, 0.2), (0.03, 0.2)], [(0.05, 0.2)] * 2, None),  # one volume too large
        ([(0.03, 0.2), (0.03, 0.3), (0.03, 0.2)], [(0.03, 0.2)] * 2, None),  # one width too large
        ([(0.079, 0.2)] * 3, [(0.1, 0.2)] * 2, None),  # fell by a fifth
        ([(0.081, 0.2)] * 3, [(0.1, 0.2)] * 2, "limited by noise"),
        ([(0.095, None)] * 3, [(0.09, None)] * 2, "limited by noise"),
        ([(0.081, 0.2), (0.081, 0.2), (0.079, 0.2)], [(0.1, 0.2)] * 2, None),
        ([(0.041, 0.2), (0.04, 0.2), (0.041, 0.2)], [(0.04, 0.2)] * 2, None),  # one volume is small enough
    ],
)
def test_reason_to_stop(checks: Any, earlier: Any, expected: str | None) -> None:
    # Half of 80 trials, and of 76 and 72 trials down to a multiple of 4.
    told = dict(zip([80, 76, 72, 40, 36], [*checks, *earlier], strict=True))

    def reason(finished: int, fewest: int) -> str | None:
        def check_of(count: int) -> Check:
            return Check(count, *told.get(count, (0.5 - count / 1000, None)))  # falling, but far from known

        return reason_to_stop(check_of, finished, fewest, tolerance=0.04, width=0.25)

    for finished in (80, 83):
        assert reason(finished, fewest=36) == expected
    assert reason(83, fewest=37) == (expected if expected == "known" else None)
    assert reason(83, fewest=73) is None


def test_a_check_of_plenty_of_data_is_small(plenty: BoundaryMap) -> None:
    found = check(plenty.space, plenty.seen, along="y")
    assert found.trials == 256
    assert found.error_volume == pytest.approx(plenty.error_volume)
    assert found.width is not None
    assert found.width < 0.1
    assert check(plenty.space, plenty.seen[:64]).width is None
    assert check(plenty.space, plenty.seen[:64]).error_volume > found.error_volume


# --- the library stands alone

LIBRARY = Path(__file__).parents[2] / "platform" / "isoloss" / "search" / "boundary"


def test_the_library_imports_nothing_of_isoloss_but_itself() -> None:
    for module in LIBRARY.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert not node.level, module
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("isoloss") or name.startswith("isoloss.search.boundary."), (module, name)


def test_the_sampler_loads_without_ray_torch_and_mlflow() -> None:
    code = (
        "import sys; from isoloss.search import BoundarySampler, BoundaryMap, band, Band, End\n"
        "print([name for name in ('ray', 'torch', 'mlflow', 'pydantic', 'pandas') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_importing_search_alone_loads_neither_optuna_nor_scipy() -> None:
    code = "import sys, isoloss.search; print([name for name in ('optuna', 'scipy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
