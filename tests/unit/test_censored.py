"""Means of censored values: against Student's interval, a likelihood on a grid, and symmetry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm, t

from isoloss.analysis.censored import censored_mean


def test_without_bounds_it_is_students_interval() -> None:
    values = np.array([0.3, -1.2, 0.9, 2.2])
    mean, interval = censored_mean(values, np.array([]))
    half = t.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert mean == pytest.approx(values.mean(), abs=1e-5)
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=1e-6)


def test_the_likelihood_of_a_grid_has_the_same_maximum_and_ends() -> None:
    known, bounds = np.array([-1.1, -0.4, 0.2, -0.9]), np.array([0.3, 0.5])
    means, log_sigmas = np.linspace(-3, 4, 351)[:, None, None], np.linspace(-2, 2, 201)[None, :, None]
    seen = norm.logpdf(known, means, np.exp(log_sigmas)).sum(axis=-1)
    profile = (seen + norm.logsf(bounds, means, np.exp(log_sigmas)).sum(axis=-1)).max(axis=1)
    inside = means.ravel()[profile > profile.max() - 3 * math.log1p(t.ppf(0.975, 5) ** 2 / 5)]
    mean, interval = censored_mean(known, bounds)
    assert mean == pytest.approx(means.ravel()[profile.argmax()], abs=0.02)
    assert (interval.low, interval.high) == pytest.approx((inside[0], inside[-1]), abs=0.025)


def test_units_do_not_matter() -> None:
    known, bounds = np.array([-1.1, -0.4, 0.2]), np.array([0.3])
    mean, interval = censored_mean(known, bounds)
    shifted, moved = censored_mean(1e3 + 1e-4 * known, 1e3 + 1e-4 * bounds)
    assert [shifted, *moved] == pytest.approx([1e3 + 1e-4 * x for x in (mean, *interval)], abs=1e-8)


@pytest.mark.parametrize("known", [[], [0.5], [0.5, 0.5], [0.5, 0.5 + 1e-12]])
def test_one_value_tells_no_spread(known: list[float]) -> None:
    mean, interval = censored_mean(np.array(known), np.array([1.0, 1.5]))
    assert all(map(math.isnan, (mean, *interval)))
