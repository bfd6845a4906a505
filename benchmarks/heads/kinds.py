"""One training pass of every head, forward and backward, beside the linear head's."""

# N tokens, V vocabulary, M width

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.heads.measure import Bar, Times, table
from torch import nn

from isoloss.config import heads
from isoloss.config.parts import Decoder
from isoloss.model.heads import build_head

TOKENS = 2048
SIZES = ((64, 8192), (256, 8192), (64, 32_768))
KINDS: dict[str, heads.Head] = {
    "Linear()": heads.Linear(),
    "Linear(tied=True)": heads.Linear(tied=True),
    "Linear(softcap=30)": heads.Linear(softcap=30),
    "Linear(z_loss=1e-4)": heads.Linear(z_loss=1e-4),
    "LowRank(rank=16)": heads.LowRank(rank=16),
    "Mixture(components=4)": heads.Mixture(components=4),
    "Sigsoftmax()": heads.Sigsoftmax(),
    "Monotone()": heads.Monotone(),
    "Sparsemax()": heads.Sparsemax(),
    "Entmax()": heads.Entmax(),
    "Spherical()": heads.Spherical(),
    "Adaptive()": heads.Adaptive(),
    "Wide()": heads.Wide(),
    "Experts(rank=16)": heads.Experts(rank=16),
    "BackwardRank(rank=16)": heads.BackwardRank(rank=16),
    "ProjectedUpdate()": heads.ProjectedUpdate(),
    "DummyClasses(count=1024)": heads.DummyClasses(count=1024),
}
LIMITS = {"Mixture(components=4)": 4.5}


def measure(sizes: tuple[tuple[int, int], ...], rounds: int) -> list[Bar]:
    """Print one table and return the bars."""
    columns, bars = [], []
    for width, vocab_size in sizes:
        times = Times({name: training_pass(head, width, vocab_size) for name, head in KINDS.items()}, rounds)
        over = {name: times.ratio(name, "Linear()") for name in KINDS}
        columns.append([f"{1000 * times.median('Linear()'):,.0f} ms", *(f"{over[name]:.2f}" for name in KINDS)])
        for name, limit in LIMITS.items():
            bars.append(Bar(f"{name} over Linear(), M {width}, V {vocab_size:,}", over[name], limit))
        print(".", end="", flush=True)
    print(f"\n\nA training pass of each head, N = {TOKENS:,}: CPU time over the linear head's\n")
    rows = zip(("`Linear()` itself", *(f"`{name}`" for name in KINDS)), *columns, strict=True)
    print(table(("head", *(f"M {width}, V {vocab_size:,}" for width, vocab_size in sizes)), rows))
    return bars


def training_pass(declared: heads.Head, width: int, vocab_size: int) -> Callable[[], None]:
    """Return the head's loss and gradients on random tokens, its weights drawn as for training."""
    generator = torch.Generator().manual_seed(0)
    embedding = nn.Embedding(vocab_size + 1, width)
    head = build_head(declared, vocab_size, Decoder(width=width, depth=1), embedding)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            scale = head.initial_scale(name)
            if scale is not None:
                parameter.normal_(0.0, scale, generator=generator)
        embedding.weight.normal_(0.0, 0.02, generator=generator)
    hidden_NM = torch.randn(TOKENS, width, generator=generator).requires_grad_()
    targets_N = torch.randint(vocab_size, (TOKENS,), generator=generator)
    tensors = (hidden_NM, embedding.weight, *head.parameters())

    def run() -> None:
        head.training_loss(hidden_NM, targets_N).backward()
        for tensor in tensors:
            tensor.grad = None

    return run
