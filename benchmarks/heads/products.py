"""The cross-entropy of logits W h, forward and backward, beside its three matrix products alone and torch's forms."""

# N tokens, V vocabulary, D columns of the last matrix

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from benchmarks.heads.measure import Bar, Times, table
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions

from isoloss.model.loss import linear_cross_entropy, token_gradients

TOKENS = 2048
WIDTHS = (64, 256, 576)
VOCABULARIES = {"float32": (8192, 32_768, 131_072), "bfloat16": (8192,)}
LIMITS = {"float32": 1.25, "bfloat16": 2.0}
LARGEST = 2**30
"""Bytes of logits that the products alone may keep."""


class Sizes:
    """One problem, and each way to its loss and gradients."""

    def __init__(self, width: int, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.input_ND = torch.randn(TOKENS, width, generator=generator).requires_grad_()
        self.weight_VD = torch.randn(vocab_size, width, generator=generator).mul_(0.02).requires_grad_()
        self.targets_N = torch.randint(vocab_size, (TOKENS,), generator=generator)

    def _backward(self, total: Tensor) -> None:
        total.backward()
        self.input_ND.grad = self.weight_VD.grad = None

    def own(self) -> None:
        self._backward(linear_cross_entropy(self.input_ND, self.weight_VD, self.targets_N))

    def probe(self) -> None:
        token_gradients(self.input_ND, self.weight_VD, self.targets_N)

    def full_logits(self) -> None:
        self._backward(F.cross_entropy(F.linear(self.input_ND, self.weight_VD), self.targets_N, reduction="sum"))

    def torch_chunks(self) -> None:
        options = LinearCrossEntropyOptions(batch_chunk_size=256)
        self._backward(
            F.linear_cross_entropy(self.input_ND, self.weight_VD, self.targets_N, reduction="sum", options=options)
        )


def products(sizes: Sizes, dtype: torch.dtype) -> Callable[[], None]:
    """Return the three products alone, into matrices that are kept."""
    input_ND, weight_VD = sizes.input_ND.detach().to(dtype), sizes.weight_VD.detach().to(dtype)
    (N, D), V = input_ND.shape, len(weight_VD)
    rows = min(N, LARGEST // (V * dtype.itemsize))
    logits_NV = torch.randn(rows, V).to(dtype)
    by_input_ND, by_weight_VD = input_ND.new_empty(rows, D), weight_VD.new_empty(V, D)

    def run() -> None:
        for chunk_ND in input_ND.split(rows):
            torch.mm(chunk_ND, weight_VD.T, out=logits_NV)
            torch.mm(logits_NV, weight_VD, out=by_input_ND)
            torch.mm(logits_NV.T, chunk_ND, out=by_weight_VD)

    return run


def measure(kind: str, widths: tuple[int, ...], vocabularies: tuple[int, ...], rounds: int) -> list[Bar]:
    """Print one table and return the bars; ``kind`` is float32, or bfloat16 for the ways under autocast.

    ``F.linear_cross_entropy`` does not follow autocast: it is float32 in both.
    """
    dtype = getattr(torch, kind)
    precision: Callable[[], AbstractContextManager[object]] = (
        nullcontext if kind == "float32" else lambda: torch.autocast("cpu", dtype=dtype)
    )
    rows, bars = [], []
    for vocab_size in vocabularies:
        for width in widths:
            sizes = Sizes(width, vocab_size)
            ways = {"own": sizes.own, "full": sizes.full_logits, "torch": sizes.torch_chunks, "probe": sizes.probe}
            with precision():
                times = Times({"products": products(sizes, dtype), **ways}, rounds)
            over = {name: times.ratio(name, "products") for name in ways}
            milliseconds = f"{1000 * times.median('products'):,.0f}"
            rows.append((f"{width}, {vocab_size:,}", milliseconds, *(f"{ratio:.2f}" for ratio in over.values())))
            at = f"D {width}, V {vocab_size:,}, {kind}"
            bars.append(Bar(f"own over the products alone, {at}", over["own"], LIMITS[kind]))
            bars.append(Bar(f"own over full logits, {at}", times.ratio("own", "full"), 1.0))
            print(".", end="", flush=True)
    print(f"\n\nLinear cross-entropy, {kind}, N = {TOKENS:,}: CPU time over that of its products\n")
    header = ("D, V", "products, ms", "own chunks", "`F.cross_entropy`", "`F.linear_cross_entropy`, 256 tokens")
    print(table((*header, "`token_gradients`"), rows))
    return bars
