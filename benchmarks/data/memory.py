"""The most memory that preparing takes: the driver, Ray's daemons and the workers together, as PSS."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.data.corpora import write_text
from tests.e2e.command import MARK, Command

LOOK_SECONDS = 1.0
DECLARED = """
from isoloss import Corpus, Files, Ladder
corpus = Corpus(
    name="bench", source=Files("source/*.parquet"), tokenizer=Ladder({vocab_size}), train_bytes={train_bytes}
)
"""


def memory(gigabytes: float, train_gigabytes: float | None, vocab_size: int, workers: int) -> None:
    """Print the peak while a corpus of so many gigabytes of text is prepared, and who held it.

    ``train_gigabytes`` bounds what is cut into tokens, which takes longest; all is scanned and selected from.
    """
    train_bytes = None if train_gigabytes is None else int(train_gigabytes * 1e9)
    with tempfile.TemporaryDirectory(prefix="isoloss-bench-") as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        write_text(source, int(gigabytes * 1e9))
        Path(scratch, "corpus.py").write_text(DECLARED.format(vocab_size=vocab_size, train_bytes=train_bytes))
        begun = time.monotonic()
        run = Command("data", "prepare", "corpus.py", "--data", "data", "--workers", str(workers), cwd=Path(scratch))
        try:
            peak: Counter[str] = Counter()
            while run.process.poll() is None:
                now = _held(run.mark)
                peak = max(peak, now, key=lambda held: held.total())
                time.sleep(LOOK_SECONDS)
        finally:
            run.end()
        if run.process.returncode:
            raise SystemExit(run.output)
        size, seconds = sum(path.stat().st_size for path in source.iterdir()), time.monotonic() - begun
    print(
        f"{gigabytes:g} GB of text ({size / 1e9:.1f} GB of parquet), V {vocab_size}, {workers} workers: peak "
        f"{peak.total() / 1e3:,.0f} MB, {seconds:.0f} s"
    )
    for name, kilobytes in peak.most_common():
        print(f"    {kilobytes / 1e3:6,.0f} MB  {name}")


def _held(mark: str) -> Counter[str]:
    """Return the kilobytes of PSS of a run's processes, by what they are."""
    held: Counter[str] = Counter()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                rollup = (process / "smaps_rollup").read_text().splitlines()
                name = (process / "comm").read_text().strip()
                held[name] += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        except OSError:  # it ended meanwhile
            continue
    return held
