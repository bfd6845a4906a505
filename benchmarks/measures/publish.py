"""What publishing costs: the seconds of writing 1,000 trials with 200 points each into MLflow on SQLite, and again.

python -m benchmarks.measures.publish
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from pathlib import Path

from benchmarks.measures.report import POINTS, STUDY, TRIALS, ledger

from isoloss.track.publish import publish

MOST_SECONDS = 60.0


def rows(database: Path) -> dict[str, int]:
    """Return the number of rows of each of MLflow's tables."""
    with sqlite3.connect(database) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made, database = ledger(Path(folder, "ledger")), Path(folder, "mlflow.db")
        counts = []
        print(f"| {TRIALS:,} trials of {POINTS} points into MLflow on SQLite | CPU s | s | bar | rows written |")
        print("|---|---|---|---|---|")
        for name in ("the first time", "the second time"):
            cpu, wall = time.process_time(), time.monotonic()
            done = publish(STUDY, made, f"sqlite:///{database}")
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            assert (done.trials, done.pending, done.error) == (TRIALS, 0, "")
            counts.append(rows(database))
            print(f"| {name} | {cpu:.1f} | {wall:.1f} | {MOST_SECONDS:.0f} | {sum(counts[-1].values()):,} in all |")
        print(f"\nThe second time {'changed nothing' if counts[0] == counts[1] else 'ADDED ROWS'}.")


if __name__ == "__main__":
    main()
