"""The same training on CUDA: it agrees with the CPU to rounding, and with itself to the byte."""

from __future__ import annotations

import dataclasses

import pytest
import torch

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
