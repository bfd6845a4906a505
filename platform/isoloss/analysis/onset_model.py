"""Where a loss curve stops following its own power law: Bayesian comparison of all hypotheses of a grid."""

# N evaluations, K curves measured at the same ones, R shapes of another fall
# H hypotheses: A exponents, T onsets, S slopes; D kinds of onset (flattens, rises)

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

EXPONENTS: Floats = np.geomspace(0.05, 2.0, 24)
STEADY_EXPONENTS: Floats = np.geomspace(0.05, 2.0, 100)
"""Exponents of power laws with and without an onset. The second lie closer: of a curve that is known well none without
an onset would fit, if only since its exponent is missing."""

ONSETS = 40
"""Even places of the logarithm of the clock at which the onset may lie."""

SLOPES: Floats = np.array([0.25, 0.0, -0.25, -0.5, -1.0, -2.0, -4.0])
"""Slopes after the onset over the logarithm of the clock, in multiples of the slope at the onset."""

KINDS = (slice(0, 2), slice(2, None))
"""Which of the slopes flatten, and which rise."""

STARTS = (0.0, 0.2, 0.4)
"""Where the power law begins, as shares of the window's logarithm: losses before may be anywhere in its range."""

NOISES = ((0.0, 1.0), (1.0, 0.15), (3.0, 0.15), (1.0, 0.6), (3.0, 0.6))
"""Noise: the standard deviation of its correlated part over that of its independent one, and the correlated part's
length in the logarithm of the clock."""

FEWEST_POINTS = 8
BEFORE, AFTER = 4, 2
"""Evaluations that must lie before and after an onset."""

QUANTILES = (0.025, 0.5, 0.975)

PRIOR = 0.25
"""Probability of an onset before the curve is seen: a curve that says little stays below a half."""

NEIGHBOUR_NOISE = 0.3
"""Noise between neighbouring evaluations over the loss's standard error, as expected before the curve is seen. The
held-out tokens are the same each time, so that most of the error is common to all evaluations."""

PRIOR_WEIGHT = 1.0
"""How many degrees of freedom that expectation is worth."""

MISFIT = 0.005
"""How far, as a share of the curve's range, a loss strays from any of these laws without noise. It also keeps the gaps
of the grids from being taken for evidence."""

DEPTH = -12.0
"""The lowest log posterior of an onset that is told from 0, below the highest."""


@dataclass(frozen=True)
class Posterior:
    """What K curves say: probability of an onset and, if there is one, its clock and whether the loss rises after it.

    ``onset`` is the median, ``low`` and ``high`` the ends of the central 95 % interval, at least one place of the grid.
    """

    probability_K: Floats
    onset_K: Floats
    low_K: Floats
    high_K: Floats
    rises_K: Floats


@dataclass(frozen=True)
class _View:
    """One start of the power law and one noise: the N x N precision, free of the intercept, and its normalisation.

    Onsets before ``earliest`` would leave too few evaluations of the power law.
    """

    precision_NN: Floats
    log_scale: float
    freedom: float
    earliest: int

    def trends(self, trend_HN: Floats) -> Floats:
        return trend_HN[self.earliest * len(EXPONENTS) * len(SLOPES) :]


class _Products(NamedTuple):
    """Products of the trends and the other falls under a view's precision.

    In single precision, in which all is several times as fast, and sums of squares, 1 at most, err by less than the
    misfit that is added to them.
    """

    inverse_square_H: Singles
    cross_RH: Singles
    share_RH: Singles
    inverse_rest_RH: Singles
    square_R: Singles


class OnsetModel:
    """Power law without and with an onset, for curves measured at the same evaluations.

    Without: loss = E + A c^-a - C w, with A, C >= 0, c the clock and w a fall beside the power law, such as what the
    decay of the learning rate brings (Tissue et al. 2024). With: the same up to an onset, from which on the power law
    goes on as a line over ln c whose slope is a quarter of that at the onset, 0, or rising. E, A and C are fitted to
    each hypothesis; its marginal likelihood is Student's t under a g-prior with large g (Liang et al. 2008), whose
    scale cancels, as all hypotheses have equally many coefficients. Exponents, onsets, slopes, starts of the power law,
    noises and w are averaged over their grids.
    """

    def __init__(self, clock_N: Floats, fall_RN: Floats) -> None:
        """Prepare for rising positive clocks, and shapes that the fall beside the power law may have, from 0 up.

        Raises ValueError for fewer than ``FEWEST_POINTS`` evaluations.
        """
        if len(clock_N) < FEWEST_POINTS:
            raise ValueError(f"an onset needs {FEWEST_POINTS} evaluations or more, not {len(clock_N)}")
        self.log_N = np.log(clock_N)
        self.onset_T = np.linspace(self.log_N[BEFORE - 1], self.log_N[-AFTER], ONSETS)
        self.trend_HN = np.concatenate([self._broken(), self._steady()])
        self.fall_RN = fall_RN

    def _steady(self) -> Floats:
        return np.exp(-STEADY_EXPONENTS[:, None] * (self.log_N - self.log_N[0]))

    def _broken(self) -> Floats:
        """Return the trends with an onset, in the order onset, exponent, slope."""
        log_N, onset_T = self.log_N - self.log_N[0], self.onset_T - self.log_N[0]
        until_T1N = np.minimum(log_N, onset_T[:, None])[:, None]
        held_TAN = np.exp(-EXPONENTS[:, None] * until_T1N)
        slope_TA = -EXPONENTS * np.exp(-EXPONENTS * onset_T[:, None])
        bend_TAN = slope_TA[:, :, None] * (log_N - until_T1N)
        trend_TASN = held_TAN[:, :, None] + SLOPES[:, None] * bend_TAN[:, :, None]
        return trend_TASN.reshape(-1, len(log_N))

    @cached_property
    def _views(self) -> list[_View]:
        span = self.log_N[-1] - self.log_N[0]
        firsts = {int(np.searchsorted(self.log_N, self.log_N[0] + share * span - 1e-9)) for share in STARTS}
        firsts = {first for first in firsts if len(self.log_N) - first >= FEWEST_POINTS}
        views = [self._view(first, *noise) for first, noise in itertools.product(sorted(firsts), NOISES)]
        return [view for view in views if view.earliest < ONSETS]

    def _view(self, first: int, ratio: float, length: float) -> _View:
        log_M = self.log_N[first:]
        covariance = np.eye(len(log_M)) + ratio**2 * np.exp(-np.abs(log_M[:, None] - log_M) / length)
        inverse = np.linalg.inv(covariance)
        sums_M = inverse.sum(0)
        precision_NN = np.zeros((len(self.log_N), len(self.log_N)))
        precision_NN[first:, first:] = inverse - np.outer(sums_M, sums_M) / sums_M.sum()
        freedom = PRIOR_WEIGHT + len(log_M) - 2 - (len(self.fall_RN) > 0)
        determinants = np.linalg.slogdet(covariance)[1] + math.log(sums_M.sum())
        log_scale = math.lgamma(freedom / 2) - freedom / 2 * math.log(math.pi) - determinants / 2
        earliest = int(np.searchsorted(self.onset_T, self.log_N[first + BEFORE - 1] - 1e-9))
        return _View(precision_NN, log_scale, freedom, earliest)

    @cached_property
    def _products(self) -> list[_Products]:
        """Return each view's products of the trends with themselves and with each shape of the other fall."""
        found = []
        for view in self._views:
            trend_HN = view.trends(self.trend_HN)
            weighted_HN = trend_HN @ view.precision_NN
            square_H = (weighted_HN * trend_HN).sum(1)
            # A trend that is constant within the view explains nothing.
            square_H[square_H < 1e-12] = np.inf
            cross_RH = self.fall_RN @ weighted_HN.T
            share_RH = cross_RH / square_H
            square_R = np.einsum("rn,nm,rm->r", self.fall_RN, view.precision_NN, self.fall_RN)
            inverse_rest_RH = 1 / (square_R[:, None] - cross_RH * share_RH)
            of = (1 / square_H, cross_RH, share_RH, inverse_rest_RH, square_R)
            found.append(_Products._make(map(_single, of)))
        return found

    def posterior(self, loss_KN: Floats, error_K: Floats) -> Posterior:
        """Return what the curves say; ``error_K`` is the usual standard error of each curve's losses.

        NaN where a curve is all one number.
        """
        range_K = np.ptp(loss_KN, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            loss_KN = (loss_KN - loss_KN[:, :1]) / range_K[:, None]
            spread_K = PRIOR_WEIGHT * (NEIGHBOUR_NOISE * error_K / range_K) ** 2
        parts = [part for i in range(len(self._views)) for part in self._marginals(i, loss_KN, spread_K)]
        steady_K, broken_KTD = (_log_mean(np.stack(of), 0) for of in zip(*parts, strict=True))
        total_K = _log_sum(broken_KTD.reshape(len(loss_KN), -1), 1)
        odds_K = np.exp(np.clip(total_K - steady_K, -700, 700)) * PRIOR / (1 - PRIOR)
        low_K, onset_K, high_K = self._interval(_log_sum(broken_KTD, 2))
        rises_K = np.exp(_log_sum(broken_KTD[:, :, 1], 1) - total_K)
        return Posterior(odds_K / (1 + odds_K), onset_K, low_K, high_K, rises_K)

    def _marginals(self, i: int, loss_KN: Floats, spread_K: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield a view's log marginal likelihoods for each other fall: without an onset, and by onset and kind."""
        view = self._views[i]
        onsets = ONSETS - view.earliest
        prior = math.log(onsets * len(EXPONENTS) * len(SLOPES))
        for rest_KH in self._residuals(i, loss_KN):
            rest_KH += _single(spread_K[:, None] + view.freedom * MISFIT**2)
            log_KH: Singles = _single(view.log_scale) - _single(view.freedom / 2) * np.log(rest_KH)
            highest_K1 = log_KH.max(axis=1, keepdims=True)
            relative_KH = np.exp(log_KH - highest_K1)
            relative_KTAS = relative_KH[:, : -len(STEADY_EXPONENTS)].reshape(-1, onsets, len(EXPONENTS), len(SLOPES))
            relative_KTS = relative_KTAS.sum(2)
            broken_KTD = np.full((len(loss_KN), ONSETS, len(KINDS)), -np.inf)
            with np.errstate(divide="ignore"):  # onsets that the curve excludes
                for kind, of in enumerate(KINDS):
                    broken_KTD[:, view.earliest :, kind] = np.log(relative_KTS[..., of].sum(2)) + highest_K1 - prior
            yield _log_mean(log_KH[:, -len(STEADY_EXPONENTS) :], 1), broken_KTD

    def _residuals(self, i: int, loss_KN: Floats) -> Iterator[Singles]:
        """Yield the sum of squares that the least-squares fit with A, C >= 0 leaves of each curve, by shape."""
        view, of = self._views[i], self._products[i]
        weighted_KN = loss_KN @ view.precision_NN
        total_K1 = _single((weighted_KN * loss_KN).sum(1, keepdims=True))
        trend_KH = _single(weighted_KN @ view.trends(self.trend_HN).T)
        alone_KH = total_K1 - np.maximum(trend_KH, 0) ** 2 * of.inverse_square_H
        if not len(self.fall_RN):
            yield np.maximum(alone_KH, 0)
        for r, fall_N in enumerate(self.fall_RN):
            fall_K1 = _single((weighted_KN @ fall_N)[:, None])
            # Coefficients of both, by Cramer's rule, divided by the trend's square, which may be infinite.
            c_KH = (trend_KH * of.share_RH[r] - fall_K1) * of.inverse_rest_RH[r]
            a_KH = (trend_KH + c_KH * of.cross_RH[r]) * of.inverse_square_H
            both_KH = total_K1 - a_KH * trend_KH + c_KH * fall_K1
            one_KH = np.minimum(alone_KH, total_K1 - np.maximum(-fall_K1, 0) ** 2 / of.square_R[r])
            yield np.maximum(np.where(np.minimum(a_KH, c_KH) > 0, both_KH, one_KH), 0)

    def _interval(self, log_KT: Floats) -> tuple[Floats, Floats, Floats]:
        """Return ``QUANTILES`` of the clock at the onset, whose log posterior is a cubic spline between its places."""
        from scipy.interpolate import CubicSpline

        fine = np.linspace(self.onset_T[0], self.onset_T[-1], 32 * (ONSETS - 1) + 1)
        highest_K1 = log_KT.max(axis=1, keepdims=True)
        # Without an end to its depth the spline would ring beside steep flanks; what lies below weighs nothing.
        spline = CubicSpline(self.onset_T, np.maximum(log_KT - highest_K1, DEPTH), axis=1)
        density = np.exp(spline(fine))
        below = np.cumsum(density[:, 1:] + density[:, :-1], axis=1)
        low_K, onset_K, high_K = (np.array([np.interp(q * of[-1], of, fine[1:]) for of in below]) for q in QUANTILES)
        # A curve that is known well knows no more than the grid.
        half = (self.onset_T[1] - self.onset_T[0]) / 2
        return np.exp(np.minimum(low_K, onset_K - half)), np.exp(onset_K), np.exp(np.maximum(high_K, onset_K + half))


def _single(value: Any) -> Any:
    return np.asarray(value, dtype=np.float32)


def _log_sum(values: Floats | Singles, axis: int) -> Floats:
    highest = values.max(axis, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        summed: Floats = np.log(np.exp(values - highest).sum(axis)) + highest.squeeze(axis)
    return summed


def _log_mean(values: Floats | Singles, axis: int) -> Floats:
    return _log_sum(values, axis) - math.log(values.shape[axis])
