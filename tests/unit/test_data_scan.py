"""Which documents are kept, held out and trained on: against a reference that goes through them one by one."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fineweb_files import FINEWEB, FINEWEB_EDU, Row, rows, write

from isoloss.config.corpus import Corpus, Files, Ladder, Where
from isoloss.data.card import DataError
from isoloss.data.frozen import sample
from isoloss.data.scan import SCAN, scan
from isoloss.data.selection import Selection, dropped_summary, freeze, frozen_summary, select
from isoloss.data.sources import list_files

NULL_IN = ("language", "language_score", "score", "int_score", "dump")


def text_hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def scanned(path: Path, where: Where = Where()) -> pa.Table:  # noqa: B008 (frozen)
    (file,) = list_files(Files(str(path)))
    return pa.Table.from_batches(scan(file, Files(str(path)), where), SCAN)


def corpus(**fields: Any) -> Corpus:
    return Corpus(name="test", source=Files("unused"), tokenizer=Ladder(300), **fields)


# --- the scan


def reason(row: Row, where: Where) -> str:
    """The reference: the first reason to drop a document."""
    size = len(row["text"].encode())
    if where.language is not None and row["language"] != where.language:
        return "language"
    for name in ("language_score", "score", "int_score"):
        least = getattr(where, name)
        if least is not None and (row[name] is None or row[name] < least):
            return name
    if where.dumps and row["dump"] not in where.dumps:
        return "dump"
    if size == 0:
        return "empty"
    if size < where.least_bytes:
        return "too short"
    return "too long" if where.most_bytes is not None and size > where.most_bytes else ""


FILTERS = [
    Where(),
    Where(language="en"),
    Where(language_score=0.65),
    Where(score=2.5),
    Where(int_score=3),
    Where(dumps=("CC-MAIN-2024-10", "CC-MAIN-2025-05")),
    Where(least_bytes=150, most_bytes=250),
    Where(language="en", language_score=0.7, score=2, int_score=2, dumps=("CC-MAIN-2013-20",), least_bytes=120),
]


@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_documents_are_dropped_as_the_reference_drops_them(tmp_path: Path, ending: str, where: Where) -> None:
    draw = random.Random(0)
    documents = rows(300)
    for row in draw.sample(documents, 100):
        row[draw.choice(NULL_IN)] = None
    for row in draw.sample(documents, 10):
        row["text"] = draw.choice(["", "é", "x"])
    table = scanned(write(tmp_path / f"a{ending}", documents), where)
    assert table["dropped"].to_pylist() == [reason(row, where) for row in documents]
    assert table["row"].to_pylist() == list(range(300))
    assert table["id"].to_pylist() == [row["id"] for row in documents]
    assert table["bytes"].to_pylist() == [len(row["text"].encode()) for row in documents]
    assert table["hash"].to_pylist() == [text_hash(row["text"]) for row in documents]


def test_a_filter_by_a_column_that_a_file_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet: no 'int_score'"):
        scanned(write(tmp_path / "a.parquet", rows(3), FINEWEB), Where(int_score=3))


# --- the selection


def with_repeats(seed: int) -> list[list[Row]]:
    """Three files of documents, some of whose ids and texts occur before, in the same file or another."""
    draw = random.Random(seed)
    documents = rows(120, seed)
    for row in draw.sample(documents, 30):
        row["id"] = draw.choice(documents)["id"]
    for row in draw.sample(documents, 30):
        row["text"] = draw.choice(documents)["text"]
    ends = sorted(draw.choices(range(1, 120), k=2))
    return [documents[: ends[0]], documents[ends[0] : ends[1]], documents[ends[1] :]]


def reference(documents: list[Row], where: Where, held_out_bytes: int, train_bytes: int | None) -> list[str]:
    """The reference: what becomes of each document, "held out" and "training" among the reasons."""
    ids: set[str] = set()
    texts: set[str] = set()
    fate = []
    for row in documents:
        dropped = reason(row, where)
        if not dropped:
            dropped = "duplicate id" if row["id"] in ids else "duplicate text" if row["text"] in texts else ""
            ids.add(row["id"])
            texts.add(row["text"])
        fate.append(dropped or "training")
    kept = [place for place, what in enumerate(fate) if what == "training"]
    held = 0
    for place in sorted(kept, key=lambda place: text_hash(documents[place]["text"])):
        if held >= held_out_bytes:
            break
        held += len(documents[place]["text"].encode())
        fate[place] = "held out"
    trained = 0
    for place in kept:
        if fate[place] == "training":
            if train_bytes is not None and trained >= train_bytes:
                fate[place] = "beyond train_bytes"
            trained += len(documents[place]["text"].encode())
    return fate


def selected(tmp_path: Path, files: list[list[Row]], asked: Corpus) -> tuple[list[pa.Table], Selection, list[pa.Table]]:
    scans = [
        scanned(write(tmp_path / f"{number}.parquet", part), asked.where) for number, part in enumerate(files) if part
    ]
    selection, start, frozen = select(scans, asked), 0, []
    for table in scans:
        frozen.append(freeze(table, Selection(*(values[start : start + len(table)] for values in selection))))
        start += len(table)
    return scans, selection, frozen


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("train_bytes", [None, 1, 5_000])
def test_the_selection_is_the_reference_s(tmp_path: Path, seed: int, train_bytes: int | None) -> None:
    files = with_repeats(seed)
    documents = [row for part in files for row in part]
    where = Where(language="en") if seed % 2 else Where()
    scans, selection, frozen = selected(
        tmp_path, files, corpus(where=where, held_out_bytes=2_000, train_bytes=train_bytes)
    )
    fate = reference(documents, where, 2_000, train_bytes)
    kept = [(row, what) for row, what in zip(documents, fate, strict=True) if what in ("training", "held out")]
    found = pa.concat_tables(frozen)
    assert found["id"].to_pylist() == [row["id"] for row, _ in kept]
    assert found["hash"].to_pylist() == [text_hash(row["text"]) for row, _ in kept]
    assert found["held_out"].to_pylist() == [what == "held out" for _, what in kept]

    dropped = dropped_summary(scans, [f"{n}.parquet" for n in range(len(scans))], selection.dropped_N)
    places = [(f"{n}.parquet", row) for n, table in enumerate(scans) for row in range(len(table))]
    for name in {*fate} - {"training", "held out"}:
        of_it = [place for place, what in enumerate(fate) if what == name]
        assert dropped.pop(name) == {
            "documents": len(of_it),
            "first": [
                {"file": places[place][0], "row": places[place][1], "id": documents[place]["id"]} for place in of_it[:3]
            ],
        }
    assert dropped == {}

    held = [row for row, what in kept if what == "held out"]
    trained = [row for row, what in kept if what == "training"]
    summary = frozen_summary(frozen)
    assert summary["held_out"] == {"documents": len(held), "bytes": sum(len(row["text"].encode()) for row in held)}
    assert summary["training"]["documents"] == len(trained)
    flags = b"".join(bytes([what == "held out"]) + text_hash(row["text"]) for row, what in kept)
    assert summary["hash"] == hashlib.sha256(flags).hexdigest()
    for field in ("id", "text"):
        assert len({row[field] for row in held} | {row[field] for row in trained}) == len(kept)


def test_too_little_text_is_refused_with_what_there_is(tmp_path: Path) -> None:
    documents = [row | {"text": f"{number:04}" * 25} for number, row in enumerate(rows(10))]
    assert len(selected(tmp_path, [documents], corpus(held_out_bytes=500))[2][0]) == 10
    with pytest.raises(DataError, match=r"to hold 501 bytes out takes documents of 600, more than half of the 1000"):
        selected(tmp_path, [documents], corpus(held_out_bytes=501))
    with pytest.raises(DataError, match="no document of 'test' is left: of 10 were dropped 10 for language"):
        selected(tmp_path, [documents], corpus(where=Where(language="de")))


def test_the_tokenizers_sample_is_of_training_documents_by_the_second_half_of_the_hash(tmp_path: Path) -> None:
    files = [rows(80, 0), rows(40, 1)]
    _, _, frozen = selected(tmp_path, files, corpus(held_out_bytes=3_000))
    trained = pa.concat_tables(frozen).filter(np.array([not x for t in frozen for x in t["held_out"].to_pylist()]))
    expected, size = set(), 0
    for row in sorted(trained.to_pylist(), key=lambda row: row["hash"][8:]):
        if size >= 4_000:
            break
        expected.add(row["id"])
        size += row["bytes"]
    assert [name for table in sample(frozen, 4_000) for name in table["id"].to_pylist()] == [
        name for name in trained["id"].to_pylist() if name in expected
    ]
    assert sum(len(table) for table in sample(frozen, 10**9)) == len(trained)


def test_the_schema_of_the_tests_is_fineweb_s() -> None:
    nine = ["text", "id", "dump", "url", "date", "file_path", "language", "language_score", "token_count"]
    assert FINEWEB_EDU.names == [*nine, "score", "int_score"]
