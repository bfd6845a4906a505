"""Fewer points of a curve: as many as a panel can show, without losing its peaks."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from isoloss.outcome import Curve

MOST_POINTS = 64
"""So many points a curve has at most: a panel is some 250 pixels wide."""


def thinned(curve: Curve, most: int = MOST_POINTS) -> list[int]:
    """Return which points of a curve are drawn: at most ``most``, the first and the last among them.

    The logarithm of the step is cut into even stretches, and each keeps its lowest and its highest loss, so that no
    spike is lost, however short.
    """
    count = len(curve.step)
    if count <= most:
        return list(range(count))
    log_step = np.log(np.maximum(curve.step, 0.5))
    stretches = most // 2 - 1
    share = (log_step - log_step[0]) / (log_step[-1] - log_step[0])
    stretch = np.minimum((share * stretches).astype(int), stretches - 1)
    loss = np.asarray(curve.loss)
    borders = [0, *(np.flatnonzero(np.diff(stretch)) + 1).tolist(), count]
    kept = {0, count - 1}
    for start, end in itertools.pairwise(borders):
        kept |= _extremes(loss[start:end], start)
    return sorted(kept)


def _extremes(loss: NDArray[np.float64], start: int) -> set[int]:
    return {start + int(loss.argmin()), start + int(loss.argmax())}
