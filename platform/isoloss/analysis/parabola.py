"""The lowest point of a curve that a few noisy values tell: a parabola, and what it errs by where the curve is none."""

# R replicates, P places in decades; coefficients (a, b, c) of a + b x + c x²

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from isoloss.analysis.statistics import NONE, Floats, Interval

UNEVEN = 0.2
"""Share of itself by which curvature changes over a decade: no loss is taken to be more even than that."""


@dataclass(frozen=True)
class Parabola:
    """Mean coefficients (a, b, c), their covariance, and the degrees of freedom of its estimate (0: no estimate).

    ``shift`` moves the vertex, and ``rate_error`` and ``loss_error`` are further standard errors of vertex and height,
    all three because the curve is no parabola.
    """

    mean: Floats
    covariance: Floats
    degrees: int
    shift: float = 0.0
    rate_error: float = 0.0
    loss_error: float = 0.0

    @property
    def convex(self) -> bool:
        """Whether it has a lowest point."""
        return bool(self.mean[2] > 0)

    @property
    def vertex(self) -> float:
        """Where it is lowest, before any shift."""
        return float(-self.mean[1] / (2 * self.mean[2]))

    def at(self, x: float) -> float:
        """Return its value at ``x``."""
        return float(np.array([1.0, x, x**2]) @ self.mean)

    def height_interval(self, x: float, level: float = 0.95) -> Interval:
        """Return the interval of its value at ``x`` by Student's t."""
        basis = np.array([1.0, x, x**2])
        variance = max(float(basis @ self.covariance @ basis), 0.0) + self.loss_error**2
        half = self._quantile(level) * math.sqrt(variance)
        return NONE if math.isnan(half) else Interval(self.at(x) - half, self.at(x) + half)

    def vertex_interval(self, level: float = 0.95) -> Interval:
        """Return where its slope does not differ from 0 (Fieller 1954); infinite where the curvature is in doubt too.

        (b + 2 c x)² <= t² var(b + 2 c x) is a quadratic inequality in x; where c differs from 0, its solutions are an
        interval around the vertex.
        """
        t = self._quantile(level)
        if math.isnan(t):
            return NONE
        (_, b, c), covariance = self.mean, self.covariance
        slope_variance = covariance[1, 1] + (2 * c * self.rate_error) ** 2
        square = 4 * (c**2 - t**2 * covariance[2, 2])
        cross = 4 * (b * c - t**2 * covariance[1, 2])
        constant = b**2 - t**2 * slope_variance
        if square <= 0:
            return Interval(-math.inf, math.inf)
        root = math.sqrt(max(cross**2 - 4 * square * constant, 0.0))
        return Interval((-cross - root) / (2 * square) + self.shift, (-cross + root) / (2 * square) + self.shift)

    def _quantile(self, level: float) -> float:
        from scipy.stats import t

        return float(t.ppf((1 + level) / 2, self.degrees)) if self.degrees else math.nan


def coefficients(x_P: Floats, loss_RP: Floats) -> Floats:
    """Return (a, b, c) of each replicate's parabola by least squares, (R, 3)."""
    return np.asarray(loss_RP @ np.linalg.pinv(np.stack([np.ones_like(x_P), x_P, x_P**2], axis=1)).T)


def parabola(x_P: Floats, loss_RP: Floats) -> Parabola:
    """Fit one parabola a replicate by least squares, at three places or more.

    The covariance is that of the mean over replicates; with one replicate, that of its fit from its residuals.
    """
    found_R3 = coefficients(x_P, loss_RP)
    count, places = loss_RP.shape
    if count > 1:
        return Parabola(found_R3.mean(axis=0), np.cov(found_R3.T) / count, count - 1)
    spare = places - 3
    if not spare:
        return Parabola(found_R3[0], np.full((3, 3), math.nan), 0)
    basis_P3 = np.stack([np.ones_like(x_P), x_P, x_P**2], axis=1)
    residual = float(((loss_RP[0] - basis_P3 @ found_R3[0]) ** 2).sum())
    return Parabola(found_R3[0], np.linalg.inv(basis_P3.T @ basis_P3) * residual / spare, spare)


def allowing_for(found: Parabola, other: Floats, step: float, lowest: float) -> Parabola:
    """Return the parabola with half of the way to another one's vertex as shift, as the truth is somewhere on that way.

    ``other`` are the coefficients through other places; no vertex moves by more than ``step``, the distance of places,
    and where the other one has none, the way is that far to either side. The standard error of the vertex is that of a
    uniform distribution over the way, and at least ``UNEVEN`` s² / 6 at places s apart: a third derivative
    of ``UNEVEN`` times the second one moves the vertex by so much. That of the height is half of the difference, and
    that of a uniform distribution between the vertex and ``lowest``, the lowest value that was seen.
    """
    least = UNEVEN * step**2 / 6
    changed = Parabola(other, found.covariance, 0)
    dip = (lowest - found.at(found.vertex)) / math.sqrt(12)
    if not changed.convex:
        return replace(found, rate_error=math.hypot(step / math.sqrt(3), least), loss_error=abs(dip))
    way = min(max(changed.vertex - found.vertex, -step), step)
    return replace(
        found,
        shift=way / 2,
        rate_error=math.hypot(way / math.sqrt(12), least),
        loss_error=math.hypot((changed.at(found.vertex + way) - found.at(found.vertex)) / 2, dip),
    )


def through_fourth(x_4: Floats, loss_R4: Floats) -> Floats:
    """Return the mean coefficients with the fourth place in the stead of the farthest of the first three.

    Both parabolas share two places, so that they differ along one direction, and the curvature tells by how much. Since
    replicates scatter, the square of that over its variance is (R - 1) / (R - 3) on average where the truth is 0 (the
    mean of F); so much is taken off, which leaves nothing of up to three replicates.
    """
    farthest = int(np.abs(x_4[:3] - x_4[3]).argmax())
    kept = [place for place in range(4) if place != farthest]
    first_R3 = coefficients(x_4[:3], loss_R4[:, :3])
    replicates = len(loss_R4)
    if replicates <= 3:
        return np.asarray(first_R3.mean(axis=0))
    change_R3 = coefficients(x_4[kept], loss_R4[:, kept]) - first_R3
    square = float(change_R3[:, 2].mean()) ** 2
    noise = float(change_R3[:, 2].var(ddof=1)) / replicates * (replicates - 1) / (replicates - 3)
    share = math.sqrt(max(1.0 - noise / square, 0.0)) if square else 0.0
    return np.asarray(first_R3.mean(axis=0) + share * change_R3.mean(axis=0))
