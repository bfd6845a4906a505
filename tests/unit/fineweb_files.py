"""Files of documents in FineWeb's schema, written by tests."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FINEWEB = pa.schema(
    {
        "text": pa.string(),
        "id": pa.string(),
        "dump": pa.string(),
        "url": pa.string(),
        "date": pa.string(),
        "file_path": pa.string(),
        "language": pa.string(),
        "language_score": pa.float64(),
        "token_count": pa.int64(),
    }
)
FINEWEB_EDU = FINEWEB.append(pa.field("score", pa.float64())).append(pa.field("int_score", pa.int64()))
TEXT = "the of and to a in is it you that he was for on are with as his they be one have Москва 東京 naïve 🙂 e\u0301"
WORDS = TEXT.split()

Row = dict[str, Any]


def rows(count: int, seed: int = 0) -> list[Row]:
    """Documents of 20 to 60 words in FineWeb-Edu's columns."""
    return [dict(row) for row in _rows(count, seed)]


@cache
def _rows(count: int, seed: int) -> list[Row]:
    draw = random.Random(seed)
    return [
        {
            "text": " ".join(draw.choices(WORDS, k=draw.randint(20, 60))) + f" {seed}/{number}",
            "id": f"<urn:uuid:{seed}-{number}>",
            "dump": draw.choice(["CC-MAIN-2013-20", "CC-MAIN-2024-10"]),
            "url": f"http://example.org/{number}",
            "date": None,
            "file_path": "s3://commoncrawl/x.warc.gz",
            "language": draw.choice(["en", "en", "fr"]),
            "language_score": draw.choice([0.6, 0.65, 0.9, 0.99]),
            "token_count": 40,
            "score": draw.choice([1.2, 2.5, 3.0, 4.1]),
            "int_score": draw.choice([1, 2, 3, 4]),
        }
        for number in range(count)
    ]


def write(path: Path, documents: Sequence[Row], schema: pa.Schema = FINEWEB_EDU, row_group: int = 50) -> Path:
    """Write documents in the format of the path's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({name: row[name] for name in schema.names}) + "\n" for row in documents).encode()
    if path.suffix == ".parquet":
        kept = [{name: row[name] for name in schema.names} for row in documents]
        pq.write_table(pa.Table.from_pylist(kept, schema), path, row_group_size=row_group)
    elif path.suffix == ".txt":
        path.write_bytes("\n\n".join(row["text"] for row in documents).encode() + b"\n")
    else:
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path
