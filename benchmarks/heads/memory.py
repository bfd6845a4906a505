"""The most memory that a loss's forward and backward passes take beyond its gradients, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.heads.measure import Bar, table

VOCAB_SIZE = 131_072
LIMIT_MB = 64.0
WAYS = ("own", "torch_chunks", "full_logits")


def measure(widths: tuple[int, ...]) -> list[Bar]:
    """Print one table and return the bars."""
    rows, bars = [], []
    for width in widths:
        peaks = []
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.heads.memory", way, str(width)]
            peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        rows.append((str(width), *(f"{peak:,.0f}" for peak in peaks)))
        bars.append(Bar(f"MB beyond the gradients, D {width}, V {VOCAB_SIZE:,}", peaks[0], LIMIT_MB))
    print(f"\nPeak MB of one pass beyond the gradients themselves, float32, V = {VOCAB_SIZE:,}\n")
    print(table(("D", "own chunks", "`F.linear_cross_entropy`, 256 tokens", "`F.cross_entropy`"), rows))
    return bars


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _child(way: str, width: int) -> None:
    """Print the peak of one pass, in MB: resident memory at its highest, less what there was before it."""
    import torch
    from benchmarks.heads.products import TOKENS, Sizes

    torch.set_num_threads(1)
    getattr(Sizes(width, 8), way)()  # loads the libraries
    sizes = Sizes(width, VOCAB_SIZE)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _kilobytes("VmRSS")
    getattr(sizes, way)()
    gradients = 4 * width * (TOKENS + VOCAB_SIZE)
    print(((_kilobytes("VmHWM") - before) * 1024 - gradients) / 1e6)


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]))
