"""Two data-parallel workers on one machine against one."""

from __future__ import annotations

import math
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isoloss import (
    AdamW,
    Adaptive,
    BackwardRank,
    Decoder,
    Evaluation,
    Experts,
    Linear,
    LowRank,
    Mixture,
    ProjectedUpdate,
    SpamLang,
    Sparsemax,
    Steps,
)
from isoloss.result import Result
from isoloss.study import Trial
from isoloss.train.loop import train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

OPTIMIZER = AdamW(learning_rate=0.01, weight_decay=0.1)
CASES: dict[str, dict[str, Any]] = {
    "linear": {"head": Linear()},
    "tied": {"head": Linear(tied=True), "task": SpamLang(vocab_size=8, sequence_length=4, scored="all")},
    "low_rank": {"head": LowRank(rank=3)},
    "mixture": {"head": Mixture(components=2)},
    "sparsemax": {"head": Sparsemax()},
    # A worker's 4 sequences leave clusters without a token and experts without a route.
    "adaptive": {"head": Adaptive(cutoffs=(0.25, 0.5))},
    "experts": {"head": Experts(rank=3, experts=5, balance=1.0)},
    "backward_rank": {"head": BackwardRank(rank=3)},
    # More symbols than dimensions, else W's columns span everything and nothing is projected.
    "projected_update": {"head": ProjectedUpdate(), "task": SpamLang(vocab_size=24, sequence_length=4)},
    "clipped": {"optimizer": AdamW(learning_rate=0.01, clip_norm=0.1)},
    "nonfinite": {"optimizer": AdamW(learning_rate=1e30)},
    "diverged": {"optimizer": AdamW(learning_rate=1e3)},
}
FINITE = tuple(case for case in CASES if case not in ("nonfinite", "diverged"))
CHECKPOINT_AT = 6  # between the evaluations at steps 4 and 7


def trial(case: str) -> Trial:
    parts = {
        "task": SpamLang(vocab_size=8, sequence_length=4),
        "model": Decoder(width=16, depth=1, attention_heads=2, kv_heads=1),
        "head": Linear(),
        "optimizer": OPTIMIZER,
        "budget": Steps(14, batch_size=8),
        "evaluation": Evaluation(sequences=15, points=6),  # odd, so that the workers' shares differ
    }
    return Trial(**{**parts, **CASES[case]})


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    workers = Workers(rank, 2)
    out: dict[str, dict[str, bytes]] = {}
    for case in CASES:
        checkpoints: list[bytes] = []
        result = train(trial(case), Settings(checkpoint_seconds=0), workers, save=checkpoints.append)
        out[case] = {"whole": result.to_bytes()}
        if case in FINITE:
            checkpoint = workers.from_first(checkpoints[CHECKPOINT_AT - 1] if rank == 0 else None)
            out[case]["resumed"] = train(trial(case), Settings(), workers, checkpoint=checkpoint).to_bytes()
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(out))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Result]]]:
    """Each rank's results."""
    folder = tmp_path_factory.mktemp("workers")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(worker, (str(folder),), nprocs=2)
    ranks = [pickle.loads(Path(folder, f"{rank}.pickle").read_bytes()) for rank in range(2)]
    return [{case: {k: Result.from_bytes(v) for k, v in runs.items()} for case, runs in rank.items()} for rank in ranks]


@pytest.mark.parametrize("case", FINITE)
def test_two_workers_measure_what_one_measures(two: list[dict[str, dict[str, Result]]], case: str) -> None:
    alone, together = train(trial(case), Settings()), two[0][case]["whole"]
    assert together.machine["workers"] == 2
    assert together.curve.step == alone.curve.step
    for name in ("loss", "standard_error"):
        np.testing.assert_allclose(getattr(together.curve, name), getattr(alone.curve, name), rtol=2e-4, atol=1e-6)
    for name, series in alone.series.items():
        np.testing.assert_allclose(together.series[name][1:], series[1:], rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_both_workers_hold_the_same_curve_and_end(two: list[dict[str, dict[str, Result]]], case: str) -> None:
    first, second = (replace(rank[case]["whole"], machine={}).to_bytes() for rank in two)
    assert first == second


@pytest.mark.parametrize(("case", "ended"), [("nonfinite", "nonfinite"), ("diverged", "above_initial")])
def test_two_workers_end_a_broken_trial_together(
    two: list[dict[str, dict[str, Result]]], case: str, ended: str
) -> None:
    curve = two[0][case]["whole"].curve
    assert train(trial(case), Settings()).curve.ended == curve.ended
    assert all(math.isfinite(loss) for loss in curve.loss)


@pytest.mark.parametrize("case", FINITE)
def test_two_workers_resume_to_the_same_bytes(two: list[dict[str, dict[str, Result]]], case: str) -> None:
    whole, resumed = two[0][case]["whole"], two[0][case]["resumed"]
    assert resumed.machine["resumed_at"] == CHECKPOINT_AT
    assert replace(resumed, machine={}) == replace(whole, machine={})
