"""What logging and the ledger cost a finished study, over what its training took.

Reads a ledger (by default the demo's), writes its claims and results into a new one, and publishes that to a new SQLite
database of MLflow. Prints the CPU seconds of both over the training seconds of all trials, and apart from them what
MLflow costs once: its import, and making the database.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from isoloss.run.ledger import Ledger
from isoloss.run.state import State
from isoloss.track.publish import publish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", nargs="?", default="spamlang-coverage")
    parser.add_argument("--state", type=Path, default=Path(".isoloss"))
    options = parser.parse_args()
    study, ledger = State(options.state).find(options.study)
    claims = ledger.claims()
    results = [ledger.result(key) for key in ledger.finished()]
    training = sum(result.machine["seconds"] for result in results)
    with tempfile.TemporaryDirectory() as folder:
        copy = Ledger(Path(folder, "ledger"))
        copy.open(study, {})
        began = time.thread_time()
        publish(study, copy, f"sqlite:///{folder}/mlflow.db")
        once = time.thread_time() - began
        began = time.thread_time()
        for claim in claims:
            copy.claim(claim.number, claim.key, study.cell(claim.cell), claim.replicate)
        for result in results:
            copy.finish(result)
        written = time.thread_time() - began
        began = time.thread_time()
        publish(study, copy, f"sqlite:///{folder}/mlflow.db")
        published = time.thread_time() - began
    saving = sum(result.machine["saving_seconds"] for result in results)
    print(f"{len(results)} trials, {training:.1f} s of training, {saving:.2f} s of it saving checkpoints")
    print(f"ledger: {written:.2f} CPU-s, {written / training:.2%} of training")
    print(f"MLflow: {published:.2f} CPU-s, {published / training:.2%} of training")
    print(f"together with checkpoints: {(written + published + saving) / training:.2%} of training")
    print(f"once a session: {once:.1f} CPU-s to import MLflow and make its database")


if __name__ == "__main__":
    main()
