"""What a trial costs outside its training.

python -m benchmarks.overhead scale         # as a study grows to thousands of trials
python -m benchmarks.overhead listing       # of that, what the ledger takes to list what it holds; needs no Ray
python -m benchmarks.overhead documented    # against a fresh TorchTrainer in every Tune trial
"""

from __future__ import annotations

import argparse
import importlib
import sys

PARTS = ("scale", "listing", "documented")


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__, formatter_class=form)
    parser.add_argument("part", choices=PARTS)
    part = parser.parse_args(sys.argv[1:2]).part
    # Only the one that is asked for: the documented pattern loads torch, which would count as the driver's memory.
    module = importlib.import_module(f"benchmarks.overhead.{part}")
    options = argparse.ArgumentParser(prog=f"{parser.prog} {part}", description=module.__doc__, formatter_class=form)
    module.add_arguments(options)
    module.main(options.parse_args(sys.argv[2:]))


if __name__ == "__main__":
    main()
