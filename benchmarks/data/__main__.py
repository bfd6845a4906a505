"""What preparing a corpus costs, and whether it survives: ``python -m benchmarks.data``.

Prints the time of tokenising beside the tokenizer alone, the ladder beside its sizes one by one, the peak memory on
corpora of some gigabytes, and whether runs that are killed end with the same bytes. Without flags: speed and memory.
"""

from __future__ import annotations

import argparse
import os

# Before tokenizers starts its threads: everything is measured on one.
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="tokenising, and the ladder")
    parser.add_argument("--repeats", type=int, default=3, help="of each timing, of which the least counts")
    parser.add_argument("--memory", type=float, nargs="*", metavar="GB", help="peak memory on corpora of these sizes")
    parser.add_argument("--vocab-size", type=int, default=8192, help="for --memory")
    parser.add_argument("--train-gb", type=float, default=None, help="for --memory: text that is cut into tokens")
    parser.add_argument("--workers", type=int, default=2, help="for --memory")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kill N runs at random moments")
    parser.add_argument("--seed", type=int, default=0, help="for --kills")
    options = parser.parse_args()
    nothing = not options.speed and options.memory is None and not options.kills
    if options.speed or nothing:
        from benchmarks.data.speed import speed

        speed(options.repeats)
    if options.memory is not None or nothing:
        from benchmarks.data.memory import memory

        for gigabytes in options.memory or (1.0, 4.0):
            memory(gigabytes, options.train_gb, options.vocab_size, options.workers)
    if options.kills:
        from benchmarks.data.kills import kills

        kills(options.kills, options.seed)


if __name__ == "__main__":
    main()
