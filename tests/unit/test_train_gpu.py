"""The same training on CUDA: it agrees with the CPU to rounding, and with itself to the byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from isoloss import AdamW, Decoder, Evaluation, LowRank, SpamLang, Steps
from isoloss.study import Trial
from isoloss.train.loop import train
from isoloss.train.settings import Settings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

TRIAL = Trial(
    task=SpamLang(vocab_size=64, sequence_length=8),
    model=Decoder(width=32, depth=2, kv_heads=2),
    head=LowRank(rank=8),
    optimizer=AdamW(learning_rate=1e-2, weight_decay=0.1),
    budget=Steps(60, batch_size=16),
    evaluation=Evaluation(sequences=64, points=12),
)


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone: a model that is shared out is then whole, by the same code."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_cuda_agrees_with_the_cpu_to_rounding() -> None:
    on_cpu, on_cuda = (train(TRIAL, Settings(device=device)).curve.loss for device in ("cpu", "cuda"))  # type: ignore[arg-type]
    assert on_cuda == pytest.approx(on_cpu, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_repeats_itself_and_resumes_to_the_byte(dtype: str) -> None:
    settings = Settings(device="cuda", dtype=dtype, checkpoint_seconds=0)  # type: ignore[arg-type]
    saved: list[bytes] = []
    whole = train(TRIAL, settings, save=saved.append)
    resumed = train(TRIAL, settings, checkpoint=saved[len(saved) // 2])
    for other in (resumed, train(TRIAL, settings)):
        assert dataclasses.replace(other, machine={}).to_bytes() == dataclasses.replace(whole, machine={}).to_bytes()


def test_cuda_trains_in_micro_batches_as_at_once() -> None:
    at_once, in_parts = (train(TRIAL, Settings(device="cuda", micro_batch=size)).curve.loss for size in (None, 4))
    assert in_parts == pytest.approx(at_once, rel=1e-3, abs=1e-4)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_trains_a_model_that_is_shared_out_as_a_whole_one(dtype: str) -> None:
    saved: list[bytes] = []
    whole = train(TRIAL, Settings(device="cuda", dtype=dtype))  # type: ignore[arg-type]
    settings = Settings(device="cuda", dtype=dtype, shard=True, checkpoint_seconds=0)  # type: ignore[arg-type]
    shared = train(TRIAL, settings, save=saved.append)
    resumed = train(TRIAL, settings, checkpoint=saved[len(saved) // 2])
    tolerance = 1e-3 if dtype == "float32" else 2e-2
    assert shared.curve.loss == pytest.approx(whole.curve.loss, rel=tolerance, abs=1e-4)
    assert dataclasses.replace(resumed, machine={}).to_bytes() == dataclasses.replace(shared, machine={}).to_bytes()
