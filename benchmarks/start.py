"""How long the command line takes before it works: imports, help and the plan of a study of 10,000 trials.

Prints the fastest of five runs of each, with the bound it should stay under.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = """
from isoloss import AdamW, Choice, Decoder, Log, LowRank, SpamLang, Steps, Study

study = Study(
    name="ten-thousand", question="How long does a plan take?",
    task=SpamLang(vocab_size=256, sequence_length=32), model=Decoder(width=32, depth=2), head=LowRank(rank=16),
    optimizer=AdamW(learning_rate=3e-3), budget=Steps(300, batch_size=32), replicates=2,
    axes={
        "task.vocab_size": Choice(64, 256, 1024, 4096, 16384),
        "head.rank": Choice(1, 2, 4, 8, 12, 16, 20, 24, 28, 32),
        "optimizer.learning_rate": Log(1e-4, 1e-1, points=100),
    },
)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "study.py").write_text(STUDY)
        for bound, arguments in (
            (0.3, ["-c", "import isoloss"]),
            (1.0, ["-m", "isoloss", "--help"]),
            (2.0, ["-m", "isoloss", "plan", "study.py"]),
        ):
            taken = min(_seconds(arguments, folder) for _ in range(5))
            print(f"python {' '.join(arguments)}: {taken:.2f} s (bound {bound} s)")


def _seconds(arguments: list[str], folder: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True, capture_output=True)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
