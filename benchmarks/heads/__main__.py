"""What heads cost, one thread: ``make bench-heads``, or parts of it by ``python -m benchmarks.heads PART…``.

Parts: ``float32`` and ``bfloat16`` time the cross-entropy of logits W h, forward and backward, beside its three matrix
products alone and beside torch's forms; ``memory`` is what it takes beyond its gradients; ``kinds`` times every head
beside the linear one; ``probing`` times the survival probe beside the training that it watches. Times are CPU times, in
rounds in which all ways take turns; ratios are medians over rounds.

The chunks are the project's own, though torch has chunks too. Those are as fast with 256 tokens, but take 136 MB at
V = 131,072 and D = 64, and 313 MB at D = 576; with 96 tokens they take 1.3 to 1.4 times the products, and as much at
D = 576. Where a token is learnt to 1 - p_y = 1e-11 their gradient by h is off by 94 %, the project's by 4e-7. They have
h's type, not float32, do not follow autocast, and tell no squared norm of p - y.
"""

from __future__ import annotations

import argparse

import torch
from benchmarks.heads import kinds, memory, probing, products
from benchmarks.heads.measure import Bar, table

QUICK_WIDTHS, QUICK_VOCABULARIES, QUICK_ROUNDS = (64,), (8192,), 3


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    rounds, quick = options.rounds, options.quick
    widths = tuple(options.widths or (QUICK_WIDTHS if quick else products.WIDTHS))

    def linear(kind: str) -> list[Bar]:
        chosen = options.vocabularies or (QUICK_VOCABULARIES if quick else products.VOCABULARIES[kind])
        return products.measure(kind, widths, tuple(chosen), rounds)

    parts = {
        "float32": lambda: linear("float32"),
        "bfloat16": lambda: linear("bfloat16"),
        "memory": lambda: memory.measure(widths),
        "kinds": lambda: kinds.measure(kinds.SIZES[:1] if quick else kinds.SIZES, rounds),
        "probing": lambda: probing.measure(rounds),
    }
    unknown = set(options.parts) - set(parts)
    if unknown:
        raise SystemExit(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    bars = [bar for part in options.parts or parts for bar in parts[part]()]
    print(table(("bar", "measured", "bound", ""), (bar.row() for bar in bars)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.heads", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, in about a minute")
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds of each comparison (default: 5)")
    parser.add_argument("--widths", type=int, nargs="+", help="D of the first three parts")
    parser.add_argument("--vocabularies", type=int, nargs="+", help="V of the first two parts")
    options = parser.parse_args()
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else 5)
    return options


if __name__ == "__main__":
    main()
