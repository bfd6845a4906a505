"""CPU time of one suggestion of the boundary sampler, after different numbers of trials."""

# P points, D parameters

from __future__ import annotations

import math
import time
from statistics import median

import numpy as np
import optuna
from benchmarks.boundary.truths import SYNTHETIC
from optuna.trial import create_trial
from scipy.stats import qmc

from isoloss.search.boundary.sampler import BoundarySampler
from isoloss.search.boundary.space import Space

BOUNDS = {200: 0.060, 1000: 0.400, 5000: 2.0}
"""Most seconds of one suggestion after so many trials."""

SUGGESTIONS = {200: 40, 1000: 20, 5000: 8}
POOL = 16
"""Points an existing trial from which those near the boundary are taken."""

EDGE = (0.02, 0.98)


def seconds_of_suggestion(truth_name: str, trials: int) -> tuple[float, float]:
    """Return the median over some suggestions in a row, and the first, which fits the priors anew.

    Half of the trials before them cover the space evenly and half lie near the boundary. Sobol points of the sampler,
    which take no time, are left out.
    """
    truth = SYNTHETIC[truth_name]
    space, rng = Space(truth.distributions), np.random.default_rng(0)
    sampler = BoundarySampler(space=truth.distributions, seed=0)
    study = optuna.create_study(sampler=sampler)
    pool_PD = qmc.Sobol(len(space), rng=0).random_base2(math.ceil(math.log2(POOL * trials)))
    points = [space.point(row_D) for row_D in space.cover(pool_PD)]
    share = truth.share(points[trials // 2 :])
    near = np.flatnonzero((share > EDGE[0]) & (share < EDGE[1]))[: trials - trials // 2]
    before = points[: trials // 2] + [points[trials // 2 + i] for i in near]
    for i in rng.permutation(trials):
        value = truth.trial(before[i], 0, rng)[0]
        study.add_trial(create_trial(params=before[i], distributions=truth.distributions, value=value))
    taken: list[float] = []
    while len(taken) < SUGGESTIONS[trials]:
        began = time.process_time()
        trial = study.ask(truth.distributions)
        seconds = time.process_time() - began
        study.tell(trial, truth.trial(trial.params, 0, rng)[0])
        if trial.number % sampler.explore_every:
            taken.append(seconds)
    return median(taken), taken[0]
