"""One trial on one, two and four workers, whole or shared out, at once or in micro-batches: the same numbers."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from isoloss import AdamW, Adaptive, Decoder, Evaluation, Linear, LowRank, Probes, SpamLang, Steps
from isoloss.result import Result
from isoloss.study import Trial
from isoloss.train import looks
from isoloss.train.loop import Stopped, train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)
pytestmark = [pytest.mark.slow, pytest.mark.long]

TOLERANCE = 1e-5
"""Relative, in float32. Sums of 32 float32 terms in another order differ by some sqrt(32) 2^-24 = 3e-7, and each of 8
updates adds that once more. Were one of two workers not heard, curves would differ by 1e-2 and more."""

HEADS: dict[str, Any] = {
    "linear": Linear(bias=True),
    "tied": Linear(tied=True),
    "low_rank": LowRank(rank=3),  # four workers cannot share three rows out equally: one has none
    "adaptive": Adaptive(),
}
LAYOUTS = {
    "2": (2, Settings(micro_batch=2)),
    "2 sharded": (2, Settings(shard=True, micro_batch=2)),
    "4": (4, Settings(micro_batch=1)),
    "4 sharded": (4, Settings(shard=True)),
}
STOPPED_AT = 3  # between the evaluations at updates 2 and 4


def trial(head: str, probes: Probes | None = None) -> Trial:
    return Trial(
        task=SpamLang(vocab_size=24, sequence_length=4),
        model=Decoder(width=16, depth=2, attention_heads=2, kv_heads=1),
        head=HEADS[head],
        optimizer=AdamW(learning_rate=0.01, weight_decay=0.1, clip_norm=0.5),
        budget=Steps(8, batch_size=8),
        evaluation=Evaluation(sequences=15, points=5, probes=probes),  # odd, so that the workers' shares differ
    )


PROBED = trial("tied", Probes(tokens=32, updates=True))


class Run:
    """What one worker of a group trains, by name."""

    def __init__(self, rank: int, count: int, folder: Path) -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet{count}", rank=rank, world_size=count)
        self.workers, self.folder = Workers(rank, count), folder
        self.results: dict[str, bytes] = {}

    def train(self, name: str, trial: Trial, settings: Settings, **more: Any) -> None:
        self.results[name] = train(trial, settings, self.workers, **more).to_bytes()

    def stop(self, saved: str, settings: Settings) -> None:
        """Stop a trial at a checkpoint; only the first worker may be asked whether to."""
        asked = 0

        def stop() -> bool:
            nonlocal asked
            assert self.workers.rank == 0
            asked += 1
            return asked > STOPPED_AT

        path = self.folder / f"{saved}.pt"
        with pytest.raises(Stopped):
            train(trial("low_rank"), settings, self.workers, save=path.write_bytes, stop=stop)

    def resume(self, saved: str, layout: str, settings: Settings) -> None:
        checkpoint = (self.folder / f"{saved}.pt").read_bytes() if self.workers.rank == 0 else None
        self.train(f"{saved} -> {layout}", trial("low_rank"), settings, checkpoint=checkpoint)

    def end(self) -> None:
        path = self.folder / f"{self.workers.count}-{self.workers.rank}.pickle"
        path.write_bytes(pickle.dumps(self.results))
        dist.barrier()  # the first worker keeps the group's meeting place
        dist.destroy_process_group()


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    looks.LOOK_SECONDS = 0.0  # workers look before every update, and stop where they should
    for count in (2, 4):
        if rank >= count:
            continue
        run = Run(rank, count, Path(folder))
        layouts = {name: settings for name, (workers, settings) in LAYOUTS.items() if workers == count}
        for layout, settings in layouts.items():
            for head in HEADS:
                run.train(f"{head} {layout}", trial(head), settings)
        for layout, settings in layouts.items():
            run.stop(layout, settings)
        for layout, settings in layouts.items():
            for saved in sorted({"1", layout, "2 sharded"}):
                run.resume(saved, layout, settings)
        if count == 2:
            run.train("probed", PROBED, Settings(shard=True))
            for shard in (False, True):
                run.train(f"bfloat16 {shard}", trial("linear"), Settings(shard=shard, dtype="bfloat16"))
        run.end()


Results = dict[str, Result]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """A folder with a checkpoint of one worker, and its results."""
    folder, saved = tmp_path_factory.mktemp("workers"), []
    results = {head: train(trial(head), Settings()) for head in HEADS}
    train(trial("low_rank"), Settings(checkpoint_seconds=0), save=saved.append)
    (folder / "1.pt").write_bytes(saved[STOPPED_AT - 1])
    return folder, results


@pytest.fixture(scope="module")
def together(alone: tuple[Path, Results]) -> dict[int, list[Results]]:
    """Each worker's results, by their number."""
    folder, _ = alone
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(worker, (str(folder),), nprocs=4)
    return {
        count: [
            {name: Result.from_bytes(data) for name, data in pickle.loads(path.read_bytes()).items()}
            for path in sorted(folder.glob(f"{count}-*.pickle"))
        ]
        for count in (2, 4)
    }


def numbers(result: Result) -> bytes:
    return replace(result, machine={}).to_bytes()


def assert_equal_to_rounding(found: Result, expected: Result) -> None:
    assert found.curve.step == expected.curve.step
    for name in ("loss", "standard_error"):
        np.testing.assert_allclose(getattr(found.curve, name), getattr(expected.curve, name), rtol=TOLERANCE)
    for name, series in expected.series.items():
        np.testing.assert_allclose(found.series[name][1:], series[1:], rtol=10 * TOLERANCE, err_msg=name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head", HEADS)
def test_every_layout_trains_what_one_worker_trains(
    alone: tuple[Path, Results], together: dict[int, list[Results]], head: str, layout: str
) -> None:
    count, settings = LAYOUTS[layout]
    found = together[count][0][f"{head} {layout}"]
    assert (found.machine["workers"], found.machine["shard"]) == (count, settings.shard)
    assert found.curve.loss != alone[1][head].curve.loss
    assert_equal_to_rounding(found, alone[1][head])


@pytest.mark.parametrize("count", [2, 4])
def test_all_workers_hold_the_same_results(together: dict[int, list[Results]], count: int) -> None:
    first, *others = ({name: numbers(result) for name, result in rank.items()} for rank in together[count])
    assert len(others) == count - 1
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("saved", "layout"),
    [("1", "2"), ("1", "2 sharded"), ("1", "4"), ("1", "4 sharded"), ("2 sharded", "2"), ("2 sharded", "4"),
     ("2 sharded", "4 sharded")],
)  # fmt: skip
def test_a_checkpoint_of_one_layout_goes_on_in_another(
    alone: tuple[Path, Results], together: dict[int, list[Results]], saved: str, layout: str
) -> None:
    found = together[LAYOUTS[layout][0]][0][f"{saved} -> {layout}"]
    assert found.machine["resumed_at"] == STOPPED_AT
    assert_equal_to_rounding(found, alone[1]["low_rank"])


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("saved", LAYOUTS)
def test_one_worker_goes_on_from_any_checkpoint(alone: tuple[Path, Results], saved: str) -> None:
    folder, results = alone
    found = train(trial("low_rank"), Settings(), checkpoint=(folder / f"{saved}.pt").read_bytes())
    assert found.machine["resumed_at"] == STOPPED_AT
    assert_equal_to_rounding(found, results["low_rank"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_going_on_in_the_same_layout_gives_the_same_bytes(together: dict[int, list[Results]], layout: str) -> None:
    results = together[LAYOUTS[layout][0]][0]
    assert numbers(results[f"{layout} -> {layout}"]) == numbers(results[f"low_rank {layout}"])


def test_probes_of_a_model_that_is_shared_out(together: dict[int, list[Results]]) -> None:
    expected, found = train(PROBED, Settings()), together[2][0]["probed"]
    assert found.series.keys() == expected.series.keys()
    assert {"suppressed", "head_effective_rank", "update_rms_head", "update_cosine"} < found.series.keys()
    for name, series in expected.series.items():
        places = [place for place, value in enumerate(series) if value is not None]
        assert [place for place, value in enumerate(found.series[name]) if value is not None] == places
        values, others = ([one[place] for place in places] for one in (series, found.series[name]))
        np.testing.assert_allclose(others, values, rtol=1e-3, err_msg=name)


def test_bfloat16_is_rounded_alike_whether_shared_out_or_not(together: dict[int, list[Results]]) -> None:
    whole, shared = (together[2][0][f"bfloat16 {shard}"] for shard in (False, True))
    exact = together[2][0]["linear 2"]
    assert exact.curve.loss != whole.curve.loss
    # bfloat16 keeps 8 bits: a relative step of 2^-8 in each product; what the layout adds is rounded in float32.
    np.testing.assert_allclose(whole.curve.loss, exact.curve.loss, rtol=2**-6)
    np.testing.assert_allclose(shared.curve.loss, whole.curve.loss, rtol=2**-10)
