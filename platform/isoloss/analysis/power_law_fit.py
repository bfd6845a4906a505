"""The fit of a power law to a few points, loss = irreducible + coefficient * x^exponent, and what it leaves open."""

# Shapes: B exponents, P points.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from isoloss.analysis.statistics import NONE, Interval

Floats = npt.NDArray[np.float64]

STEEPEST, STEP = 6.0, 0.01
"""Exponents are tried from -STEEPEST to STEEPEST, so far apart; not 0, where a power law is a constant."""

GRID_B = np.arange(-STEEPEST + STEP / 2, STEEPEST, STEP)

ACROSS = 401
"""Exponents of an interval at which the other two parameters are looked at."""

APART = 1e-9
"""Share of the product of squares below which the normal matrix's determinant is taken for 0."""


@dataclass(frozen=True)
class PowerLaw:
    """A fitted law, with the 95 % interval of each parameter; NaN where an end lies beyond what was tried.

    ``free`` says that the irreducible loss was fitted; else it is 0. ``r2`` is 1 less the sum of squared relative
    errors over that of the best constant.
    """

    exponent: float
    coefficient: float
    irreducible: float
    free: bool
    r2: float
    exponent_interval: Interval = NONE
    coefficient_interval: Interval = NONE
    irreducible_interval: Interval = NONE

    def at(self, x: float) -> float:
        """Return the law's loss at x."""
        return self.irreducible + self.coefficient * x**self.exponent


def fit(x_P: Floats, loss_P: Floats, *, free: bool) -> PowerLaw:
    """Return the power law of the least squared relative errors, without intervals.

    At a given exponent the other two are linear, so that the best of them are known in closed form (Golub & Pereyra
    1973), and the best exponent is searched over all of its range. ``coefficient`` is at least 0, and so is
    ``irreducible``, which is 0 unless ``free``. All x and losses must be above 0.
    """
    return _law(_Points(x_P, loss_P, free))


def fit_with_intervals(x_P: Floats, loss_P: Floats, *, free: bool) -> PowerLaw:
    """Return ``fit`` with 95 % intervals by profile likelihood.

    A value lies in its interval where the least sum of squares with it is at most 1 + F/df times the least of all: F is
    the 95 % quantile of F(1, df), and df = P - 3, or P - 2 unless ``free`` (Bates & Watts 1988, section 6.1). The
    scatter of the points about the law thus holds both the noise of replicates and what is no power law. All NaN
    without degrees of freedom, and where a constant fits well enough, too.
    """
    from scipy.stats import f

    points = _Points(x_P, loss_P, free)
    law = _law(points)
    df = len(x_P) - (3 if free else 2)
    cut = points.squares(law.exponent) * (1 + float(f.ppf(0.95, 1, df)) / df) if df > 0 else math.inf
    if points.constant <= cut:
        return law
    exponents = _exponents(points, cut, law.exponent)
    if any(map(math.isnan, exponents)):
        return replace(law, exponent_interval=exponents)
    coefficient, irreducible = points.within(cut, np.linspace(*exponents, ACROSS))
    return replace(law, exponent_interval=exponents, coefficient_interval=coefficient, irreducible_interval=irreducible)


def _law(points: _Points) -> PowerLaw:
    from scipy.optimize import minimize_scalar

    start = float(GRID_B[np.argmin(points.best(GRID_B).squares_B)])
    bounds = start - STEP, start + STEP
    found = minimize_scalar(points.squares, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    best = points.best(np.array([found.x]))
    return PowerLaw(
        exponent=float(found.x),
        coefficient=float(best.coefficient_B[0]) * points.centre ** -float(found.x),
        irreducible=float(best.irreducible_B[0]),
        free=points.free,
        r2=1 - float(found.fun) / points.constant if points.constant > 0 else math.nan,
    )


def _exponents(points: _Points, cut: float, best: float) -> Interval:
    """Return the smallest and the largest exponent of which the sum of squares is at most ``cut``."""
    from scipy.optimize import brentq

    inside_B = GRID_B[points.best(GRID_B).squares_B <= cut]
    ends = []
    for side, end in ((-1, min([best, *inside_B])), (1, max([best, *inside_B]))):
        beyond = GRID_B[(GRID_B - end) * side > 0]
        if not len(beyond):
            ends.append(math.nan)
            continue
        outside = beyond[np.argmin(np.abs(beyond - end))]
        ends.append(float(brentq(lambda exponent: points.squares(exponent) - cut, end, outside)))
    return Interval(*ends)


class _Best(NamedTuple):
    """The best other parameters at each exponent, and the sum of squares that is left."""

    coefficient_B: Floats
    irreducible_B: Floats
    squares_B: Floats


class _Points:
    """Sums of squared relative errors 1 - (irreducible + coefficient * u^exponent) / loss, u = x over its mean."""

    def __init__(self, x_P: Floats, loss_P: Floats, free: bool) -> None:
        self.free = free
        self.centre = math.exp(float(np.log(x_P).mean()))
        self.log_u_P = np.log(x_P / self.centre)
        self.weight_P = 1 / loss_P
        self.weights, self.weight_squares = float(self.weight_P.sum()), float(np.square(self.weight_P).sum())
        self.constant = float(np.square(1 - self.weight_P * (self.weights / self.weight_squares)).sum())

    def _powers(self, exponent_B: Floats) -> Floats:
        return np.exp(exponent_B[:, None] * self.log_u_P) * self.weight_P

    def _squares(self, power_BP: Floats, coefficient_B: Floats, irreducible_B: Floats) -> Floats:
        left_BP = 1 - coefficient_B[:, None] * power_BP - irreducible_B[:, None] * self.weight_P
        return np.asarray(np.square(left_BP).sum(axis=1))

    def squares(self, exponent: float) -> float:
        """Return the least sum of squares at one exponent."""
        return float(self.best(np.array([exponent])).squares_B[0])

    def best(self, exponent_B: Floats) -> _Best:
        """Return the best coefficient and irreducible loss at each exponent, both at least 0."""
        power_BP = self._powers(exponent_B)
        alone_B = power_BP.sum(axis=1) / np.square(power_BP).sum(axis=1)
        coefficient_B, irreducible_B, _ = self._unbounded(power_BP)
        use_B = self.free & (irreducible_B > 0) & (coefficient_B > 0)
        coefficient_B = np.where(use_B, coefficient_B, alone_B)
        irreducible_B = np.where(use_B, irreducible_B, 0.0)
        return _Best(coefficient_B, irreducible_B, self._squares(power_BP, coefficient_B, irreducible_B))

    def _unbounded(self, power_BP: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the best coefficient and irreducible loss of any sign, and the determinant of their normal matrix."""
        squares_B = np.square(power_BP).sum(axis=1)
        cross_B, sum_B = power_BP @ self.weight_P, power_BP.sum(axis=1)
        # Near exponent 0 the power is a constant, too, and the two cannot be told apart: then the power stands alone.
        determinant_B = self.weight_squares * squares_B - cross_B**2
        apart_B = determinant_B > APART * self.weight_squares * squares_B
        safe_B = np.where(apart_B, determinant_B, 1.0)
        coefficient_B = (self.weight_squares * sum_B - cross_B * self.weights) / safe_B
        irreducible_B = (squares_B * self.weights - cross_B * sum_B) / safe_B
        return np.where(apart_B, coefficient_B, 0.0), np.where(apart_B, irreducible_B, 0.0), safe_B

    def within(self, cut: float, exponent_B: Floats) -> tuple[Interval, Interval]:
        """Return the ends of all coefficients (of x) and irreducible losses of which the squares are at most ``cut``.

        At each exponent these form an ellipse about the best of any sign, of which the half with an irreducible loss
        below 0 is cut off.
        """
        power_BP = self._powers(exponent_B)
        unit_B = self.centre**-exponent_B
        squares_B = np.square(power_BP).sum(axis=1)
        alone_B = power_BP.sum(axis=1) / squares_B
        slack_B = cut - self._squares(power_BP, alone_B, np.zeros_like(alone_B))
        half_B = np.sqrt(np.maximum(slack_B, 0) / squares_B)
        coefficients = [(alone_B + side * half_B)[slack_B >= 0] * unit_B[slack_B >= 0] for side in (-1, 1)]
        if not self.free:
            return _hull(coefficients), NONE
        coefficient_B, irreducible_B, determinant_B = self._unbounded(power_BP)
        slack_B = np.maximum(cut - self._squares(power_BP, coefficient_B, irreducible_B), 0)
        irreducibles = []
        for side in (-1, 1):
            across_B = side * np.sqrt(slack_B * self.weight_squares / determinant_B)
            # Where the coefficient is at its end, the irreducible loss has gone the other way.
            there_B = irreducible_B - across_B * (power_BP @ self.weight_P) / self.weight_squares
            coefficients.append(((coefficient_B + across_B) * unit_B)[there_B >= 0])
            irreducibles.append(np.maximum(irreducible_B + side * np.sqrt(slack_B * squares_B / determinant_B), 0))
        return _hull(coefficients), _hull(irreducibles)


def _hull(values: Sequence[Floats]) -> Interval:
    found = np.concatenate(values)
    return Interval(float(found.min()), float(found.max()))
