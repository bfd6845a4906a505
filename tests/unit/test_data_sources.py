"""Source files: which a pattern stands for, and the documents that are read from them, or why they cannot be."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fineweb_files import FINEWEB, rows, write
from pyarrow import fs

from isoloss.config.corpus import Files
from isoloss.data import read_lines, sources
from isoloss.data.card import DataError
from isoloss.data.documents import BATCH_BYTES, MOST_DOCUMENT_BYTES
from isoloss.data.read import read_documents
from isoloss.data.sources import list_files

ENDINGS = [".parquet", ".jsonl", ".jsonl.gz", ".txt"]


def names(pattern: Path | str) -> list[str]:
    return [file.name for file in list_files(Files(str(pattern)))]


def read(path: Path, columns: Sequence[str] = (), **source: str | None) -> tuple[list[str], list[str]]:
    """Return the texts and ids of a file."""
    (file,) = list_files(Files(str(path), **source))
    batches = list(read_documents(file, Files(str(path), **source), columns))
    assert [batch.first for batch in batches] == [sum(len(b.texts_N) for b in batches[:i]) for i in range(len(batches))]
    texts = [text.decode() for batch in batches for text in batch.texts_N]
    return texts, [id for batch in batches for id in batch.ids_N]


# --- listing


def test_a_pattern_is_a_file_a_folder_or_has_stars(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a/1.txt", "a/10.jsonl", "a/deep/3.txt", "a/.hidden.txt", "a/notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert names(tmp_path / "b/1.txt") == ["1.txt"]
    assert names(tmp_path / "a") == ["1.txt", "10.jsonl"]
    assert names(tmp_path / "*/*.txt") == ["a/1.txt", "b/1.txt", "b/2.txt"]
    assert names(tmp_path / "*") == ["a/1.txt", "a/10.jsonl", "b/1.txt", "b/2.txt"]
    assert names(tmp_path / "a/1*.*l") == ["10.jsonl"]


def test_a_file_is_described_by_its_place_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("four")
    (file,) = list_files(Files(str(path)))
    assert (file.uri, file.size, file.modified) == (str(path), 4, path.stat().st_mtime_ns)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list_files(Files("~/*.txt")) == [file]
    monkeypatch.chdir(tmp_path)
    assert list_files(Files("a.txt")) == [file]


def test_a_uri_may_hold_what_a_path_may(tmp_path: Path) -> None:
    write(tmp_path / "a b" / "100% [1]?.txt", rows(2))
    pattern = f"file://{tmp_path}/a%20b/*.txt"
    (file,) = list_files(Files(pattern))
    assert file.name == "100% [1]?.txt"
    assert [len(batch.texts_N) for batch in read_documents(file, Files(pattern))] == [2]


def test_an_object_store_is_read_as_a_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's own client parses the URI; a folder stands in for what it would reach over the network."""
    parse = fs.FileSystem.from_uri
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    reached = SimpleNamespace(from_uri=lambda uri: (store, parse(uri)[1]))
    monkeypatch.setattr(sources, "fs", SimpleNamespace(**{**vars(fs), "FileSystem": reached}))
    for name in ("dump 1/a.parquet", "dump 1/b.parquet", "dump 2/a.parquet"):
        write(tmp_path / "bucket/data" / name, rows(3, len(name)))
    pattern = "s3://bucket/data/dump%20*/a.parquet?region=us-east-1"
    found = list_files(Files(pattern))
    assert [file.name for file in found] == ["dump 1/a.parquet", "dump 2/a.parquet"]
    assert found[0].uri == "s3://bucket/data/dump%201/a.parquet?region=us-east-1"
    for file in found:
        (batch,) = read_documents(file, Files(pattern))
        assert batch.ids_N == [row["id"] for row in rows(3, len(file.name))]
    assert names("s3://bucket/data/dump%201/?region=us-east-1") == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("{}/*.parquet", ["no file matches '{}/*.parquet'", "s3://", ".jsonl.gz"]),
        ("{}/missing", ["no file matches '{}/missing'"]),
        ("{}/*.csv", ["{}/a.csv", "must end in .parquet, .jsonl, .jsonl.gz, .txt"]),
        ("hdfs://host/x.txt", ["cannot read 'hdfs://host/x.txt'", "s3://, gs://, file://"]),
        ("file://{}/a b.txt", ["cannot list", "'file://{}/a b.txt'"]),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused(tmp_path: Path, pattern: str, words: list[str]) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(DataError) as error:
        names(pattern.format(tmp_path))
    for word in words:
        assert word.format(tmp_path) in str(error.value)


# --- reading


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_gives_the_same_texts(tmp_path: Path, ending: str) -> None:
    documents = rows(130)
    path = write(tmp_path / f"a{ending}", documents)
    texts, ids = read(path)
    assert texts == [row["text"] for row in documents]
    assert ids == ([f"a.txt:{n}" for n in range(130)] if ending == ".txt" else [row["id"] for row in documents])
    assert read(path, id=None)[1] == [f"a{ending}:{n}" for n in range(130)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_batches_hold_about_a_mebibyte_whatever_the_row_groups(tmp_path: Path, ending: str) -> None:
    draw = random.Random(0)
    documents = [row | {"text": draw.randbytes(5_000).hex()} for row in rows(500)]
    path = write(tmp_path / f"a{ending}", documents, row_group=1_000)
    (file,) = list_files(Files(str(path)))
    sizes = [sum(map(len, batch.texts_N)) for batch in read_documents(file, Files(str(path)))]
    assert sum(sizes) == 500 * 10_000
    assert max(sizes) <= BATCH_BYTES + 10_000
    assert len(sizes) <= 7


def test_other_columns_are_never_touched_and_whole_numbers_are_ids(tmp_path: Path) -> None:
    table = pa.table(
        {
            "content": pa.array(["a", "b", "a"]).dictionary_encode(),
            "number": pa.array([7, 8, 2**60]),
            "date": pa.array([[1], None, []]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", text="content", id="number") == (["a", "b", "a"], ["7", "8", str(2**60)])
    (tmp_path / "a.jsonl").write_text('{"text": "a", "id": 7}\n\n{"id": "8", "text": "b", "date": [1]}')
    assert read(tmp_path / "a.jsonl") == (["a", "b"], ["7", "8"])
    pq.write_table(pa.table({"text": pa.array(["é"], pa.large_string())}), tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet", id=None) == (["é"], ["b.parquet:0"])


@pytest.mark.parametrize("buffer", [1, 2, 3, 7])
def test_text_is_cut_at_separators_wherever_a_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    monkeypatch.setattr(read_lines, "BUFFER_BYTES", buffer)
    draw = random.Random(buffer)
    for separator in ("\n\n", "\n", "<|endoftext|>", "é"):
        pieces = ["", " ", "\n", "\n\n", "\n\n\n", "a", "bé", "東京\n", "<|endof", "\r\n", separator, separator]
        for _ in range(20):
            text = "".join(draw.choices(pieces, k=draw.randint(1, 12))) + "z"
            (tmp_path / "a.txt").write_bytes(text.encode())
            expected = [piece.removesuffix("\n") for piece in text.split(separator) if piece.strip()]
            assert read(tmp_path / "a.txt", separator=separator)[0] == expected


def parquet(**columns: pa.Array) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path, use_dictionary=False)


def damaged(place: float) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        write(path, rows(2_000), FINEWEB)
        data = path.read_bytes()
        at = int(len(data) * place)
        path.write_bytes(data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 64]) + data[at + 64 :])

    return make


def cut(path: Path) -> None:
    write(path, rows(200))
    path.write_bytes(path.read_bytes()[:-20])


def bytes_of(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


GOOD = line(text="a", id="1")
INVALID = pa.StringArray.from_buffers(3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb"))
LONG = "x" * (MOST_DOCUMENT_BYTES + 1)

BAD = {
    "empty.parquet": (bytes_of(b""), ["is empty"]),
    "empty.jsonl": (bytes_of(b""), ["is empty"]),
    "blank.jsonl": (bytes_of(b"\n\n"), ["holds no documents"]),
    "blank.txt": (bytes_of(b"\n\n \n\n\n"), ["holds no documents"]),
    "rowless.parquet": (parquet(text=pa.array([], pa.string()), id=pa.array([], pa.string())), ["holds no documents"]),
    "cut.parquet": (cut, ["truncated or damaged"]),
    "cut.jsonl.gz": (cut, ["truncated or damaged"]),
    "damaged.parquet": (damaged(0.3), ["truncated or damaged"]),
    "other.jsonl.gz": (bytes_of(GOOD), ["truncated or damaged"]),
    "textless.parquet": (parquet(id=pa.array(["1"]), body=pa.array(["a"])), ["no 'text'", "'id', 'body'"]),
    "idless.parquet": (parquet(text=pa.array(["a"])), ["no 'id'", "'text'"]),
    "textless.jsonl": (bytes_of(GOOD + line(id="2", body="a")), ["line 2", "no 'text'", "'id', 'body'"]),
    "numbers.parquet": (
        parquet(text=pa.array([1, 2]), id=pa.array(["1", "2"])),
        ["the column 'text' must hold text, not int64"],
    ),
    "numbers.jsonl": (bytes_of(GOOD + line(text=5, id="2")), ["line 2", "'text' must be a text, not 5"]),
    "fraction.jsonl": (bytes_of(line(text="a", id=1.5)), ["line 1", "'id' must be a text or a whole number, not 1.5"]),
    "null.parquet": (
        parquet(text=pa.array(["a", "b", None]), id=pa.array(["1", "2", "3"])),
        ["row 2 (counted from 0)", "'text' is null"],
    ),
    "null id.parquet": (parquet(text=pa.array(["a", "b"]), id=pa.array(["1", None])), ["row 1", "'id' is null"]),
    "null.jsonl": (bytes_of(GOOD * 2 + line(text=None, id="3")), ["line 3", "'text' must be a text, not null"]),
    "invalid.parquet": (parquet(text=INVALID, id=pa.array(["1", "2", "3"])), ["row 1", "not valid UTF-8"]),
    "invalid.jsonl": (bytes_of(GOOD + b'{"text": "\xff", "id": "2"}\n'), ["line 2", "not valid UTF-8"]),
    "invalid.txt": (bytes_of(b"a\n\nb\xff\n\nc"), ["row 1", "not valid UTF-8"]),
    "surrogate.jsonl": (bytes_of(GOOD + line(text="a\ud800", id="2")), ["line 2", r"'\ud800'", "surrogate"]),
    "surrogate id.jsonl": (bytes_of(line(text="a", id="\udc00")), ["line 1: 'id'", "surrogate"]),
    "malformed.jsonl": (bytes_of(GOOD + b'{"text": "a", "id"\n'), ["line 2: not JSON"]),
    "array.jsonl": (bytes_of(b'["a"]\n'), ["line 1", "must be an object", '["a"]']),
    "long.parquet": (
        parquet(text=pa.array(["a", LONG]), id=pa.array(["1", "2"])),
        ["row 1", "more than 64 MiB", "separator"],
    ),
    "long.jsonl": (bytes_of(GOOD + line(text=LONG, id="2")), ["line 2", "more than 64 MiB"]),
    "long.txt": (bytes_of(b"a\n\n" + LONG.encode()), ["row 1", "more than 64 MiB"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_file_and_place(tmp_path: Path, name: str) -> None:
    make, words = BAD[name]
    make(tmp_path / name)
    with pytest.raises(DataError) as error:
        read(tmp_path / name)
    for word in [str(tmp_path / name), *words]:
        assert word in str(error.value)


def test_a_filter_needs_its_column_with_values_of_its_kind(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows(3), FINEWEB)
    with pytest.raises(DataError, match=r"a.parquet: no 'score'; it has 'text', 'id', 'dump'"):
        read(tmp_path / "a.parquet", ["score"])
    pq.write_table(pa.table({"text": ["a"], "id": ["1"], "score": ["high"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="the column 'score' must hold numbers, not string"):
        read(tmp_path / "b.parquet", ["score"])
    (tmp_path / "c.jsonl").write_bytes(line(text="a", id="1", score=True))
    with pytest.raises(DataError, match="'score' must be a number or null, not true"):
        read(tmp_path / "c.jsonl", ["score"])
    with pytest.raises(DataError, match=r"d.txt: .* no 'dump'"):
        read(write(tmp_path / "d.txt", rows(1)), ["dump"])
