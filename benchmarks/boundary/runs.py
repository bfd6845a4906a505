"""One run of one method on one truth, judged at checkpoints; and the file that keeps finished runs."""

# N trials, P test points

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.boundary.methods import MINIMISERS, OURS_COST, SLOTS, SLOW, method
from benchmarks.boundary.real import TABLE, Real
from benchmarks.boundary.truths import SYNTHETIC, Truth, test_points

from isoloss.search.boundary import map as search_map
from isoloss.search.boundary.map import BoundaryMap, Seen
from isoloss.search.boundary.space import Space

CHECKPOINTS = (8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 104, 128, 160)
TRUTHS = (*SYNTHETIC, "real")
TRIALS = {"band2d": 128, "band3d": 160, "noisy2d": 128, "binary2d": 128, "real": 96}
MOST_OF_SLOW = 64
SEEDS_OF_SLOW = 3
COSTS_WEIGHED = ("band2d", "band3d", "real")

MEASURED = ("truths.py", "real.py", "methods.py", "runs.py", "one_surface.py", "intervals.py")
"""The sources of this benchmark on which kept results depend."""


@dataclass(frozen=True)
class Run:
    """The trials of a run in the order in which they finished, and what their map is worth at each checkpoint."""

    truth: str
    method: str
    seed: int
    points: list[dict[str, Any]]
    excess: list[float]
    cost: list[float]
    accuracy: dict[int, float]
    error_volume: dict[int, float]
    """The share of test points on the right side, and the share that the map expects on the wrong one."""

    seconds: float
    """CPU time of all suggestions."""


def truth_of(name: str) -> Truth:
    """Return a truth by its name; raises FileNotFoundError for the real one where it was not trained."""
    if name in SYNTHETIC:
        return SYNTHETIC[name]
    if not TABLE.exists():
        raise FileNotFoundError(f"{TABLE} is missing: benchmarks/real_map.py trains it")
    return Real()


def trials_of(truth: str, name: str) -> int:
    """Return how many trials a run has."""
    return min(TRIALS[truth], MOST_OF_SLOW) if name in SLOW else TRIALS[truth]


def can_run(truth: str, name: str) -> bool:
    """Return whether a method is run on a truth; minimisers are not where trials tell no distance to minimise."""
    if name == OURS_COST:
        return truth in COSTS_WEIGHED
    return name not in MINIMISERS or truth not in SYNTHETIC or not SYNTHETIC[truth].binary


def run(truth_name: str, name: str, seed: int) -> Run:
    """Return one run; a method with slots is asked for as many points as it has, and told of one at random."""
    truth = truth_of(truth_name)
    space = Space(truth.distributions)
    trials = trials_of(truth_name, name)
    tests_PD = test_points(space)
    inside_P = truth.inside([space.point(test_D) for test_D in tests_PD])
    asked = method(name, truth, trials, seed)
    outcome_rng, slot_rng = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    running: list[tuple[int, dict[str, Any]]] = []
    found = Run(truth_name, name, seed, [], [], [], {}, {}, 0.0)
    seconds = 0.0
    looks: Counter[tuple[Any, ...]] = Counter()
    for _ in range(trials):
        while len(running) < SLOTS.get(name, 1):
            began = time.process_time()
            running.append(asked.ask())
            seconds += time.process_time() - began
        number, point = running.pop(int(slot_rng.integers(len(running))))
        cell = tuple(point.values())
        excess, cost = truth.trial(point, looks[cell], outcome_rng)
        looks[cell] += 1
        asked.tell(number, excess, cost)
        found.points.append(point)
        found.excess.append(excess)
        found.cost.append(cost)
        if len(found.excess) in CHECKPOINTS:
            known = known_from(space, found, len(found.excess))
            found.accuracy[len(found.excess)] = float(((known.inside(tests_PD) > 0.5) == inside_P).mean())
            found.error_volume[len(found.excess)] = known.error_volume
    return Run(**{**vars(found), "seconds": seconds})


def known_from(space: Space, found: Run, trials: int) -> BoundaryMap:
    """Return the map that the first trials of a run imply, whichever method placed them."""
    return BoundaryMap(space, Seen(space.encode(found.points[:trials]), np.array(found.excess[:trials])))


def version() -> str:
    """Return what identifies the search and what it is measured on: a digest of their sources."""
    digest = hashlib.sha256()
    here = [Path(__file__).with_name(name) for name in MEASURED]
    for path in [*sorted(Path(search_map.__file__).parent.glob("*.py")), *here]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Kept:
    """Results by key, in a file of JSON lines, so that an interrupted benchmark goes on where it was.

    ``stale`` counts those that other sources made than today's; they are kept all the same.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, version()
        self.found: dict[str, Any] = {}
        self.stale = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                one = json.loads(line)
            except json.JSONDecodeError:  # the last line of an interrupted run
                continue
            self.found[one["key"]] = one["value"]
            self.stale += one["version"] != self.version

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, made and kept when it is not there."""
        if key not in self.found:
            self.found[key] = json.loads(json.dumps(make()))
            with self.path.open("a") as file:
                line = json.dumps({"key": key, "version": self.version, "value": self.found[key]})
                file.write("\n" * self._torn() + line + "\n")
        return self.found[key]

    def _torn(self) -> bool:
        return self.path.exists() and bool(self.path.stat().st_size) and not self.path.read_bytes().endswith(b"\n")

    def run(self, truth: str, name: str, seed: int) -> Run:
        """Return a run, made when it is not kept."""
        kept = self.get(f"run/{truth}/{name}/{seed}", lambda: vars(run(truth, name, seed)))
        by_trials = ("accuracy", "error_volume")
        return Run(**{**kept, **{part: {int(n): x for n, x in kept[part].items()} for part in by_trials}})
