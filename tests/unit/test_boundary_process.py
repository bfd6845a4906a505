"""The boundary's latent surfaces against dense formulas, quadrature, Monte Carlo and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import multivariate_normal, norm

from isoloss.search.boundary import process
from isoloss.search.boundary.fit import Belief, evidence_slopes, fit, packed, unpacked
from isoloss.search.boundary.kernel import Array, Kernel
from isoloss.search.boundary.lookahead import Lookahead, error_drop, sign_share
from isoloss.search.boundary.map import BoundaryMap
from isoloss.search.boundary.process import Observations, Posterior, Prior, Sites, condition

RNG = np.random.default_rng
NUMERIC_2 = np.array([False, False])


def prior_2d(mean: float = 0.3, amplitude: float = 1.7, noise: float = 0.4) -> Prior:
    return Prior(mean, Kernel(amplitude, np.array([0.35, 0.8]), NUMERIC_2), noise)


def mixed(count: int, seed: int = 0, spread: float = 1.5) -> Observations:
    """Points in the square with readings and both kinds of one-sided observations."""
    rng = RNG(seed)
    return Observations(
        rng.random((count, 2)), spread * rng.standard_normal(count), rng.integers(-1, 2, count).astype(np.float64)
    )


def downdated(covariance: Array, seen: int, precision: Array) -> Array:
    """Return a joint covariance after readings of its first ``seen`` entries, by the textbook formula."""
    cross = covariance[:, :seen]
    return covariance - cross @ np.linalg.solve(covariance[:seen, :seen] + np.diag(1.0 / precision), cross.T)


# --- kernel


def naive(kernel: Kernel, a: Array, b: Array) -> Array:
    out = np.empty((len(a), len(b)))
    for i in range(len(a)):
        for j in range(len(b)):
            square, factor = 0.0, 1.0
            for d, length in enumerate(kernel.lengths_D):
                if not kernel.unordered_D[d]:
                    square += ((a[i, d] - b[j, d]) / length) ** 2
                elif a[i, d] != b[j, d]:
                    factor *= math.exp(-1.0 / length)
            root = math.sqrt(5.0 * square)
            out[i, j] = kernel.amplitude**2 * (1.0 + root + 5.0 * square / 3.0) * math.exp(-root) * factor
    return out


@pytest.mark.parametrize("unordered", [[False, False], [False, True], [True, True], [True, False]])
def test_kernel_is_the_formula_with_and_without_unordered_dimensions(unordered: list[bool]) -> None:
    rng = RNG(1)
    kernel = Kernel(1.3, np.array([0.3, 0.7]), np.array(unordered))
    a, b = (np.where(unordered, rng.integers(0, 3, (n, 2)), rng.random((n, 2))) for n in (7, 5))
    np.testing.assert_allclose(kernel(a, b), naive(kernel, a, b), rtol=1e-12)
    np.testing.assert_allclose(kernel.of(kernel.differences(a, b)), naive(kernel, a, b), rtol=1e-12)
    np.testing.assert_allclose(np.diag(kernel(a, a)), 1.3**2, rtol=1e-12)


def test_kernel_of_no_dimension_is_a_constant() -> None:
    kernel = Kernel(2.0, np.zeros(0), np.zeros(0, dtype=bool))
    np.testing.assert_array_equal(kernel(np.zeros((2, 0)), np.zeros((3, 0))), np.full((2, 3), 4.0))


def test_kernel_is_positive_semi_definite() -> None:
    rng = RNG(2)
    points = np.column_stack([rng.random((60, 2)), rng.integers(0, 4, 60)])
    for lengths in ([0.05, 0.5, 0.2], [3.0, 1.0, 5.0]):
        kernel = Kernel(2.0, np.array(lengths), np.array([False, False, True]))
        assert np.linalg.eigvalsh(kernel(points, points)).min() > -1e-10 * 4.0 * 60


def test_kernel_length_slopes_are_finite_differences() -> None:
    rng = RNG(3)
    points = np.column_stack([rng.random((9, 2)), rng.integers(0, 3, 9)])
    weight = rng.standard_normal((9, 9))
    lengths, unordered = np.array([0.3, 0.9, 0.6]), np.array([False, False, True])
    kernel = Kernel(1.4, lengths, unordered)
    slopes = kernel.length_slopes(kernel.differences(points, points), weight)
    for d in range(3):
        up, down = (Kernel(1.4, lengths * np.exp(step * (np.arange(3) == d)), unordered) for step in (1e-5, -1e-5))
        expected = ((naive(up, points, points) - naive(down, points, points)) * weight).sum() / 2e-5
        assert slopes[d] == pytest.approx(expected, rel=1e-7)


# --- readings only: exact regression


def test_readings_alone_are_exact_regression() -> None:
    prior, rng = prior_2d(), RNG(4)
    points, at = rng.random((12, 2)), rng.random((6, 2))
    value = rng.standard_normal(12)
    found = condition(prior, Observations(points, value, np.zeros(12, dtype=int)))
    total = naive(prior.kernel, points, points) + prior.noise**2 * np.eye(12)
    cross = naive(prior.kernel, points, at)
    mean, variance = found.posterior.marginals(at)
    np.testing.assert_allclose(mean, prior.mean + cross.T @ np.linalg.solve(total, value - prior.mean), rtol=1e-10)
    covariance = naive(prior.kernel, at, at) - cross.T @ np.linalg.solve(total, cross)
    np.testing.assert_allclose(variance, np.diag(covariance), rtol=1e-9)
    np.testing.assert_allclose(
        found.posterior.covariance(found.posterior.view(at), found.posterior.view(at)), covariance, atol=1e-12
    )
    assert found.settled
    expected = multivariate_normal(np.full(12, prior.mean), total).logpdf(value)
    assert found.log_evidence == pytest.approx(expected, rel=1e-10)


def test_without_observations_the_posterior_is_the_prior() -> None:
    prior = prior_2d()
    found = condition(prior, Observations(np.zeros((0, 2)), np.zeros(0), np.zeros(0, dtype=int)))
    mean, variance = found.posterior.marginals(RNG(0).random((3, 2)))
    np.testing.assert_allclose(mean, 0.3)
    np.testing.assert_allclose(variance, 1.7**2)
    assert found.log_evidence == 0.0


# --- one-sided observations


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("value", [-4.0, 0.2, 3.0])
def test_one_one_sided_observation_is_exact(side: int, value: float) -> None:
    prior = prior_2d()
    point = np.array([[0.4, 0.6]])
    found = condition(prior, Observations(point, np.array([value]), np.array([side])), tolerance=1e-11)

    def moment(power: int) -> float:
        def integrand(f: float) -> float:
            return float(f**power * norm.pdf(f, prior.mean, 1.7) * norm.cdf(side * (f - value) / prior.noise))

        return float(quad(integrand, prior.mean - 17.0, prior.mean + 17.0, points=[value, prior.mean], limit=200)[0])

    mass = moment(0)
    mean, variance = found.posterior.marginals(point)
    assert found.log_evidence == pytest.approx(math.log(mass), abs=1e-7)
    assert mean[0] == pytest.approx(moment(1) / mass, abs=1e-6)
    assert variance[0] == pytest.approx(moment(2) / mass - (moment(1) / mass) ** 2, abs=1e-6)


@pytest.mark.parametrize("sides", [(1, -1), (1, 1), (-1, 0)])
def test_two_correlated_sites_agree_with_quadrature(sides: tuple[int, int]) -> None:
    prior = prior_2d()
    points, value, side = np.array([[0.3, 0.5], [0.5, 0.5]]), np.array([0.5, -0.2]), np.array(sides)
    found = condition(prior, Observations(points, value, side))
    axis = np.linspace(-10.0, 10.0, 801)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    density = multivariate_normal([0.3, 0.3], naive(prior.kernel, points, points)).pdf(grid)
    for i in range(2):
        apart = (grid[..., i] - value[i]) / 0.4
        density = density * (norm.cdf(side[i] * apart) if side[i] else norm.pdf(apart) / 0.4)
    mass = density.sum() * (axis[1] - axis[0]) ** 2
    weight = density / density.sum()
    mean, variance = found.posterior.marginals(points)
    # Expectation propagation is approximate from two one-sided sites on: agreement to 0.01 nat, 0.01 sd, 3 % of an sd.
    assert found.log_evidence == pytest.approx(math.log(mass), abs=0.01)
    for i in range(2):
        expected = float((weight * grid[..., i]).sum())
        spread = math.sqrt(float((weight * grid[..., i] ** 2).sum()) - expected**2)
        assert mean[i] == pytest.approx(expected, abs=0.01 * spread)
        assert math.sqrt(variance[i]) == pytest.approx(spread, rel=0.03)


def test_five_mixed_sites_agree_with_monte_carlo() -> None:
    prior = prior_2d()
    rng = RNG(6)
    points = rng.random((6, 2))
    seen = Observations(points[:5], np.array([0.4, 0.0, -0.5, 0.8, 0.1]), np.array([1, -1, 1, 0, 1]))
    found = condition(prior, seen)
    root = np.linalg.cholesky(naive(prior.kernel, points, points) + 1e-12 * np.eye(6))
    latent = 0.3 + rng.standard_normal((400_000, 6)) @ root.T
    apart = (latent[:, :5] - seen.value_N) / 0.4
    weight = np.prod(np.where(seen.side_N == 0, norm.pdf(apart) / 0.4, norm.cdf(seen.side_N * apart)), axis=1)
    evidence = weight.mean()
    standard_error = weight.std() / evidence / math.sqrt(len(weight))
    assert standard_error < 0.01
    assert found.log_evidence == pytest.approx(math.log(evidence), abs=0.02 + 4.0 * standard_error)
    weight /= weight.sum()
    expected = weight @ latent
    spread = np.sqrt(weight @ latent**2 - expected**2)
    off = np.sqrt(1.0 / (1.0 / (weight**2).sum()))  # the standard error of a weighted mean, in spreads
    mean, variance = found.posterior.marginals(points)
    np.testing.assert_allclose((mean - expected) / spread, 0.0, atol=0.02 + 4.0 * off)
    np.testing.assert_allclose(np.sqrt(variance), spread, rtol=0.02 + 4.0 * off)


@pytest.mark.parametrize("unordered", [False, True])
def test_evidence_slopes_are_finite_differences(unordered: bool) -> None:
    seen = mixed(14, seed=7)
    flags = np.array([False, unordered])
    if unordered:
        seen.points_ND[:, 1] = RNG(8).integers(0, 3, 14)
    theta = np.array([0.2, math.log(1.6), math.log(0.3), math.log(0.7), math.log(0.5)])
    prior = unpacked(theta, flags)
    np.testing.assert_allclose(packed(prior), theta, rtol=1e-12)
    found = condition(prior, seen, tolerance=1e-11)
    assert found.settled
    slopes = evidence_slopes(found, prior.kernel.differences(seen.points_ND, seen.points_ND))
    for h in range(len(theta)):
        up, down = (
            condition(unpacked(theta + step * (np.arange(5) == h), flags), seen, tolerance=1e-11).log_evidence
            for step in (1e-4, -1e-4)
        )
        assert slopes[h] == pytest.approx((up - down) / 2e-4, rel=1e-5)


def crowd(kind: str, count: int = 500) -> Observations:
    """Outcomes close together: an edge among them, a coin's, all of one side, all but one, or all at five points."""
    rng = RNG(9)
    points = 0.5 + 0.05 * rng.standard_normal((count, 2))
    side = np.where(points[:, 0] + 0.02 * rng.standard_normal(count) > 0.5, 1, -1)
    if kind == "repeated":
        points = np.repeat(rng.random((5, 2)), count // 5, axis=0)
    if kind != "edge":
        side = np.where(rng.random(count) < 0.5, 1, -1) if kind == "coin" else np.ones(count, dtype=int)
    if kind == "all but one":
        side[0] = -1
    return Observations(points, np.zeros(count), side)


@pytest.mark.parametrize("kind", ["edge", "coin", "one side", "all but one", "repeated"])
def test_many_coupled_sites_settle_soon(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(process, "MOST_SWEEPS", 60)  # of 100 that it may take
    prior = Prior(0.0, Kernel(10.0, np.array([0.4, 0.4]), NUMERIC_2), 1.0)
    found = condition(prior, crowd(kind))
    assert found.settled
    assert np.isfinite(found.log_evidence)
    assert (found.posterior.sites.precision_N > 0.0).all()


def test_a_crowd_of_one_side_is_near_what_importance_sampling_says() -> None:
    prior = Prior(0.0, Kernel(10.0, np.array([0.4, 0.4]), NUMERIC_2), 1.0)
    seen = crowd("one side", 200)
    root = np.linalg.cholesky(naive(prior.kernel, seen.points_ND, seen.points_ND) + 1e-8 * np.eye(200))
    latent = RNG(10).standard_normal((20_000, 200)) @ root.T
    chance = np.exp(log_ndtr(latent).sum(1))
    weight = chance / chance.sum()
    size = 1.0 / (weight**2).sum()
    assert size > 4000
    mean = weight @ latent
    spread = np.sqrt(weight @ latent**2 - mean**2)
    found = condition(prior, seen)
    found_mean, found_variance = found.posterior.marginals(seen.points_ND)
    # Expectation propagation is no longer exact here: its sd is up to 40 % too small, its mean 6 % of itself too high.
    np.testing.assert_allclose(found_mean, mean, rtol=0.1)
    ratio = np.sqrt(found_variance) / spread
    assert 0.55 < ratio.min() <= ratio.max() < 1.0


def test_sites_of_an_earlier_fit_lead_to_the_same_answer() -> None:
    prior, seen = prior_2d(), mixed(40, seed=10)
    first = Observations(seen.points_ND[:25], seen.value_N[:25], seen.side_N[:25])
    start = condition(prior_2d(amplitude=2.5), first).posterior
    cold, warm = (condition(prior, seen, one, tolerance=1e-9) for one in (None, start))
    assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1e-7)
    at = RNG(0).random((5, 2))
    for one, other in zip(warm.posterior.marginals(at), cold.posterior.marginals(at), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_default_tolerance_is_near_the_settled_answer() -> None:
    prior, seen, at = prior_2d(), mixed(40, seed=11), RNG(0).random((20, 2))
    (mean, variance), (exact, exact_variance) = (
        condition(prior, seen, tolerance=tolerance).posterior.marginals(at)
        for tolerance in (process.TOLERANCE, 1e-10)
    )  # fmt: skip
    assert np.abs((mean - exact) / np.sqrt(exact_variance)).max() < 0.01
    assert np.abs(variance / exact_variance - 1.0).max() < 0.01


def test_further_readings_leave_the_mean_and_lower_the_variance_exactly() -> None:
    posterior = condition(prior_2d(), mixed(20, seed=12)).posterior
    rng = RNG(13)
    points, at = rng.random((3, 2)), rng.random((8, 2))
    precision = np.array([0.5, 2.0, 30.0])
    joint = np.concatenate([points, at])
    expected = downdated(posterior.covariance(posterior.view(joint), posterior.view(joint)), 3, precision)[3:, 3:]
    more = posterior.with_readings(points, precision)
    np.testing.assert_allclose(more.covariance(more.view(at), more.view(at)), expected, atol=1e-10)
    np.testing.assert_allclose(more.marginals(at)[1], np.diag(expected), atol=1e-10)
    np.testing.assert_allclose(more.marginals(at)[0], posterior.marginals(at)[0], atol=1e-9)


def test_draws_have_the_posterior_mean_and_covariance() -> None:
    posterior = condition(prior_2d(), mixed(15, seed=14)).posterior
    at, count = RNG(15).random((4, 2)), 40_000
    draws = posterior.draws(at, count, RNG(16))
    assert draws.shape == (count, 4)
    mean, variance = posterior.marginals(at)
    covariance = posterior.covariance(posterior.view(at), posterior.view(at))
    np.testing.assert_allclose(draws.mean(0), mean, atol=5.0 * math.sqrt(variance.max() / count))
    # The standard error of a sample covariance is at most sqrt(2 / n) of the larger variance.
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=5.0 * variance.max() * math.sqrt(2.0 / count))


# --- the fit of the prior


def test_fit_finds_the_most_probable_prior() -> None:
    belief = Belief(mean=(0.0, 1.0), amplitude=(1.0, 0.5), length=(0.4, 0.6), noise=(0.15, 1.0))
    seen = mixed(30, seed=17, spread=0.7)
    middle, spread = belief.centre_and_spread(2)
    np.testing.assert_allclose(middle, [0.0, 0.0, math.log(0.4), math.log(0.4), math.log(0.15)])
    np.testing.assert_allclose(spread, [1.0, 0.5, 0.6, 0.6, 1.0])

    def loss(theta: Array) -> float:
        evidence = condition(unpacked(theta, NUMERIC_2), seen, tolerance=1e-9).log_evidence
        return float(0.5 * (((theta - middle) / spread) ** 2).sum() - evidence)

    found = packed(fit(belief, seen, belief.start(NUMERIC_2)))
    assert loss(found) < loss(middle)
    for h in range(5):  # a step of a tenth of the belief's spread to either side is no better
        for step in (0.1, -0.1):
            assert loss(found + step * spread * (np.arange(5) == h)) > loss(found)


def test_fit_holds_a_noise_without_spread() -> None:
    belief = Belief(mean=(0.0, 1.0), amplitude=(4.0, 0.6), length=(0.4, 0.6), noise=(1.0, 0.0))
    assert fit(belief, mixed(20, seed=18), belief.start(NUMERIC_2)).noise == 1.0


def test_fit_finds_the_length_that_made_the_data() -> None:
    truth = Prior(0.0, Kernel(1.0, np.array([0.2, 2.0]), NUMERIC_2), 0.05)
    rng = RNG(19)
    points = rng.random((80, 2))
    value = np.linalg.cholesky(naive(truth.kernel, points, points) + 0.05**2 * np.eye(80)) @ rng.standard_normal(80)
    belief = Belief(mean=(0.0, 1.0), amplitude=(1.0, 0.5), length=(0.4, 0.6), noise=(0.15, 1.0))
    found = fit(belief, Observations(points, value, np.zeros(80, dtype=int)), belief.start(NUMERIC_2))
    assert found.kernel.lengths_D[0] == pytest.approx(0.2, rel=0.5)
    assert found.kernel.lengths_D[1] > 1.0
    assert found.noise == pytest.approx(0.05, rel=0.5)


# --- look-ahead


@pytest.mark.parametrize("height", [0.0, 0.4, 1.5, 3.0])
@pytest.mark.parametrize("explained", [0.02, 0.3, 0.9])
def test_error_drop_is_the_monte_carlo_one(height: float, explained: float) -> None:
    # After a reading that explains a share e, the mean is N(h, e) and the variance 1 - e.
    mean = height + math.sqrt(explained) * RNG(20).standard_normal(1_000_000)
    gain = norm.cdf(-height) - norm.cdf(-np.abs(mean) / math.sqrt(1.0 - explained))
    found = float(error_drop(np.array(height), np.array(explained)))
    assert found == pytest.approx(gain.mean(), abs=5.0 * gain.std() / 1000.0 + 1e-9)


def test_error_drop_at_its_limits() -> None:
    height = np.array([0.0, 0.5, 2.0])
    np.testing.assert_allclose(error_drop(height, np.zeros(3)), 0.0, atol=2e-5)  # at height 0, sqrt(e) / pi
    np.testing.assert_allclose(error_drop(height, np.ones(3)), norm.cdf(-height), atol=2e-5)
    e = np.array([0.1, 0.5])
    np.testing.assert_allclose(error_drop(np.zeros(2), e), 0.5 - np.arctan(np.sqrt(1.0 / e - 1.0)) / np.pi, rtol=1e-9)


@pytest.mark.parametrize(("mean", "variance", "noise"), [(0.0, 1.0, 1e-6), (0.8, 2.0, 1.0), (-2.0, 9.0, 1.0)])
def test_sign_share_is_the_monte_carlo_one(mean: float, variance: float, noise: float) -> None:
    rng = RNG(21)
    latent = mean + math.sqrt(variance) * rng.standard_normal(1_000_000)
    above = latent + noise * rng.standard_normal(len(latent)) > 0.0
    share = above.mean()
    between = share * (1.0 - share) * (latent[above].mean() - latent[~above].mean()) ** 2 / variance
    found = float(sign_share(np.array(mean), np.array(variance), noise))
    # The two conditional means are known to about sd / 1000; 5e-3 relative is five times that.
    assert found == pytest.approx(between, rel=5e-3)


def test_sign_share_at_its_limits() -> None:
    # The sign of a centred Gaussian explains 2 / pi of its variance (half-normal), a noisy one 2 / pi v / (v + n^2).
    assert sign_share(np.array(0.0), np.array(4.0), 1e-9) == pytest.approx(2.0 / math.pi)
    assert sign_share(np.array(0.0), np.array(1.0), 1.0) == pytest.approx(1.0 / math.pi)
    for mean in (-40.0, -9.0, 9.0, 40.0):  # a sign known beforehand explains nothing
        assert 0.0 <= sign_share(np.array(mean), np.array(1.0), 0.1) < 1e-6


def mapped(cliff: Posterior, slope: Posterior | None) -> BoundaryMap:
    known = object.__new__(BoundaryMap)
    known.cliff, known.slope = cliff, slope
    return known


def wrong(*surfaces: Posterior, at: Array) -> float:
    """Return the mean probability that a point lies on the other side than it is put."""
    inside = np.ones(len(at))
    for surface in surfaces:
        mean, variance = surface.marginals(at)
        inside = inside * norm.cdf(-mean / np.sqrt(variance))
    return float(np.minimum(inside, 1.0 - inside).mean())


def nothing_seen(mean: float) -> Posterior:
    return Posterior(prior_2d(mean=mean, amplitude=0.1), np.zeros((0, 2)), Sites(np.zeros(0), np.zeros(0)))


def test_expected_drop_of_a_slope_is_that_of_one_more_reading() -> None:
    prior, rng = prior_2d(mean=0.0, noise=0.3), RNG(22)
    points = rng.random((8, 2))
    seen = Observations(points, points[:, 0] - points[:, 1], np.zeros(8, dtype=int))
    slope, safe = condition(prior, seen).posterior, nothing_seen(mean=-9.0)
    references, candidates = rng.random((60, 2)), rng.random((5, 2))
    found = Lookahead(mapped(safe, slope), references, np.zeros((0, 2))).drop(candidates)
    before = wrong(safe, slope, at=references)
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    for c, candidate in enumerate(candidates):
        mean, variance = (float(x[0]) for x in slope.marginals(candidate[None]))
        after = 0.0
        for z, w in zip(node, weight / weight.sum(), strict=True):
            value = mean + z * math.sqrt(variance + 0.3**2)
            more = Observations(
                np.concatenate([points, candidate[None]]), np.append(seen.value_N, value), np.zeros(9, dtype=int)
            )
            after += w * wrong(safe, condition(prior, more).posterior, at=references)
        assert found[c] == pytest.approx(before - after, rel=0.02)  # the kink of |mean| limits the quadrature


def test_expected_drop_of_a_cliff_is_near_that_of_one_more_outcome() -> None:
    prior, rng = Prior(0.0, Kernel(3.0, np.array([0.5, 0.5]), NUMERIC_2), 1.0), RNG(23)
    points = rng.random((12, 2))
    side = np.where(points.sum(1) > 1.0, 1, -1)
    cliff = condition(prior, Observations(points, np.zeros(12), side)).posterior
    references, candidates = rng.random((100, 2)), rng.random((25, 2))
    found = Lookahead(mapped(cliff, None), references, np.zeros((0, 2))).drop(candidates)
    before = wrong(cliff, at=references)
    expected = []
    for candidate in candidates:
        mean, variance = (float(x[0]) for x in cliff.marginals(candidate[None]))
        above = norm.cdf(mean / math.sqrt(variance + 1.0))
        after = 0.0
        for more, chance in ((1, above), (-1, 1.0 - above)):
            seen = Observations(np.concatenate([points, candidate[None]]), np.zeros(13), np.append(side, more))
            after += chance * wrong(condition(prior, seen).posterior, at=references)
        expected.append(before - after)
    # Yes or no is taken for a Gaussian reading that explains as much variance: right in order and size, not exact.
    assert np.corrcoef(found, expected)[0, 1] > 0.95
    assert 0.7 < found.sum() / np.sum(expected) < 1.4
    assert expected[int(np.argmax(found))] > 0.8 * max(expected)


def test_a_running_trial_takes_away_what_it_will_teach() -> None:
    prior = Prior(0.0, Kernel(3.0, np.array([0.3, 0.3]), NUMERIC_2), 1.0)
    cliff = condition(prior, Observations(np.array([[0.5, 0.0]]), np.zeros(1), np.array([1]))).posterior
    references = RNG(24).random((200, 2))
    candidates = np.array([[0.2, 0.2], [0.8, 0.9]])
    alone = Lookahead(mapped(cliff, None), references, np.zeros((0, 2))).drop(candidates)
    beside = Lookahead(mapped(cliff, None), references, candidates[:1]).drop(candidates)
    assert beside[0] < 0.7 * alone[0]
    assert beside[1] == pytest.approx(alone[1], rel=0.1)


def test_nothing_is_to_gain_where_the_other_surface_has_decided() -> None:
    slope = condition(prior_2d(mean=0.0), mixed(6, seed=25)).posterior
    references, candidates = RNG(26).random((50, 2)), RNG(27).random((4, 2))
    fallen = Lookahead(mapped(nothing_seen(mean=9.0), slope), references, np.zeros((0, 2))).drop(candidates)
    np.testing.assert_allclose(fallen, 0.0, atol=1e-6)
    standing = Lookahead(mapped(nothing_seen(mean=-9.0), slope), references, np.zeros((0, 2))).drop(candidates)
    assert (standing > 1e-3).all()


def test_each_surface_counts_as_far_as_the_other_leaves_open() -> None:
    slope = condition(prior_2d(mean=0.0, noise=0.3), mixed(6, seed=28)).posterior
    cliff = nothing_seen(mean=0.0)  # every point falls with probability a half, and no trial tells of the slope then
    references, candidates = RNG(29).random((50, 2)), RNG(30).random((4, 2))
    found = Lookahead(mapped(cliff, slope), references, np.zeros((0, 2))).drop(candidates)
    mean, variance = slope.marginals(references)
    _, at = slope.marginals(candidates)
    linked = slope.covariance(slope.view(references), slope.view(candidates)) ** 2 / (variance[:, None] * at)
    height = (np.abs(mean) / np.sqrt(variance))[:, None]
    of_slope = 0.5 * error_drop(height, 0.5 * at / (at + 0.3**2) * linked).mean(0)
    linked = naive(cliff.prior.kernel, references, candidates) ** 2 / 0.1**4
    by_sign = (2.0 / math.pi) * 0.1**2 / (0.1**2 + 0.4**2)
    of_cliff = norm.cdf(-mean / np.sqrt(variance)) @ error_drop(np.zeros((50, 1)), by_sign * linked) / 50
    np.testing.assert_allclose(found, of_slope + of_cliff, rtol=1e-4)  # references with nothing to gain are left out
