"""Kill -9 at random moments: each run is killed once, run again, and must leave the files of an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from benchmarks.data.corpora import sample
from tests.e2e.command import Command

FILES = 8
DECLARED = """
from isoloss import Corpus, Files, Ladder
corpus = Corpus(name="bench", source=Files("source/*.parquet"), tokenizer=Ladder(512, 1024), held_out_bytes=100_000)
"""


def kills(count: int, seed: int) -> None:
    """Print, for each of so many kills, when and what was killed, and whether all files came out the same."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="isoloss-bench-") as scratch:
        place = Path(scratch)
        _write(place)
        begun = time.monotonic()
        _end(_start(place))
        took, expected = time.monotonic() - begun, _files(place)
        print(f"undisturbed: {took:.1f} s, {len(expected)} files")
        wrong = 0
        for number in range(1, count + 1):
            shutil.rmtree(place / "data")
            run, moment = _start(place), draw.uniform(0, took)
            time.sleep(moment)
            worker = number % 2 == 0
            victims = run.pids("ray::tokenise_file") + run.pids("ray::scan_file") if worker else [run.process.pid]
            for victim in victims[:1]:
                os.kill(victim, signal.SIGKILL)
            if worker:
                _end(run)
            else:
                run.end()
                _end(_start(place))
            same = _files(place) == expected
            wrong += not same
            killed = ("a worker" if victims else "no worker, as none was at work") if worker else "the driver"
            print(f"{number:>3}: killed {killed} after {moment:.1f} s: {'same bytes' if same else 'OTHER BYTES'}")
        print(f"{count} kills, {wrong} with other bytes")
    if wrong:
        raise SystemExit(1)


def _write(place: Path) -> None:
    (place / "corpus.py").write_text(DECLARED)
    (place / "source").mkdir()
    table = pq.read_table(sample())
    rows = len(table) // FILES
    for file in range(FILES):
        pq.write_table(table.slice(file * rows, rows), place / f"source/{file}.parquet", row_group_size=1_000)


def _start(place: Path) -> Command:
    return Command("data", "prepare", "corpus.py", "--data", "data", "--workers", "2", cwd=place)


def _end(run: Command) -> None:
    try:
        if run.wait():
            raise SystemExit(run.output)
    finally:
        run.end()


def _files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((place / "data").rglob("*")) if path.is_file()}
