"""Text for the benchmarks: the docstring sample, and as many gigabytes as are asked for, made of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from isoloss import Corpus, Files, Ladder
from isoloss.data.sample import write_sample

SAMPLE = Path(".bench/sample.parquet")
FILE_BYTES = 128_000_000


def sample() -> Path:
    """Return the sample's file; it is written once, since that takes a minute."""
    if not SAMPLE.exists():
        SAMPLE.parent.mkdir(exist_ok=True)
        write_sample(SAMPLE)
    return SAMPLE


def texts() -> list[str]:
    return pq.read_table(sample(), columns=["text"])["text"].to_pylist()


def corpus(folder: Path, vocab_sizes: tuple[int, ...]) -> Corpus:
    """Return the corpus of all parquet files in a folder."""
    return Corpus(name="bench", source=Files(f"{folder}/*.parquet"), tokenizer=Ladder(*vocab_sizes))


def write_text(folder: Path, size: int) -> None:
    """Write files that hold ``size`` bytes of text: the sample again and again, each copy saying which it is."""
    table = pq.read_table(sample(), columns=["text", "id"])
    documents, copy, file = table.to_pylist(), 0, 0
    while size > 0:
        rows, filled = [], 0
        while filled < min(FILE_BYTES, size):
            for document in documents:
                text = f"Copy {copy}.\n{document['text']}"
                rows.append({"text": text, "id": f"{copy}:{document['id']}"})
                filled += len(text.encode())
            copy += 1
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{file:05}.parquet", row_group_size=1_000)
        size -= filled
        file += 1
