"""Preparing a corpus: the same bytes whoever makes them in whatever order, after any failure; and what is refused."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fineweb_files import Row, rows, write
from tokenizers import Tokenizer as BPE

from isoloss.config.base import replace
from isoloss.config.corpus import Corpus, Files, Hub, Ladder, Tokenizer, Where
from isoloss.config.tasks import Prepared
from isoloss.data import files as written_files
from isoloss.data.card import DataError
from isoloss.data.files import read_arrow
from isoloss.data.job import Each, in_turn
from isoloss.data.manifest import check
from isoloss.data.prepare import prepare

VOCAB_SIZES = (280, 300)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number in range(3):
        write(tmp_path / "source" / f"{number}.parquet", rows(40, number))
    return tmp_path / "source"


def corpus(folder: Path, **fields: Any) -> Corpus:
    made = {
        "source": Files(f"{folder}/*"),
        "tokenizer": Ladder(*VOCAB_SIZES, sample_bytes=20_000),
        "held_out_bytes": 3_000,
    }
    return Corpus(name="test", **{**made, **fields})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tokens(folder: Path, vocab_size: int, part: str) -> np.ndarray:
    paths = sorted((folder / "tokens" / str(vocab_size)).glob(f"*.{part}.bin"))
    return np.concatenate([np.fromfile(path, "<u2") for path in paths])


def backwards(stage: str, function: Callable[[str], int], jobs: Sequence[str]) -> Iterator[int]:
    return in_turn(stage, function, jobs[::-1])


def failing(stage: str, after: int) -> Each:
    def each(now: str, function: Callable[[str], int], jobs: Sequence[str]) -> Iterator[int]:
        for done, job in enumerate(jobs):
            if (now, done) == (stage, after):
                raise RuntimeError("a worker died")
            yield function(job)

    return each


# --- what is made


def by_file_and_row(source: Path) -> list[Row]:
    return [row for number in range(len(list(source.iterdir()))) for row in rows(40, number)]


def test_tokens_are_the_texts_each_followed_by_the_separator(tmp_path: Path, source: Path) -> None:
    where = Where(language="en")
    card = prepare(corpus(source, where=where), tmp_path / "out")
    english = [row for row in by_file_and_row(source) if row["language"] == "en"]
    held_out, size = set(), 0
    for row in sorted(english, key=lambda row: hashlib.blake2b(row["text"].encode(), digest_size=16).digest()):
        if size >= 3_000:
            break
        held_out.add(row["id"])
        size += len(row["text"].encode())
    expected = {
        "train": [row["text"] for row in english if row["id"] not in held_out],
        "held_out": [row["text"] for row in english if row["id"] in held_out],
    }
    assert (card.documents, card.held_out_documents) == (len(expected["train"]), len(expected["held_out"]))
    assert card.bytes == sum(len(text.encode()) for text in expected["train"])
    assert card.held_out_bytes == size
    assert [size.vocab_size for size in card.sizes] == list(VOCAB_SIZES)
    for made in card.sizes:
        tokenizer = BPE.from_file(str(tmp_path / f"out/tokenizers/{made.vocab_size}.json"))
        assert tokenizer.get_vocab_size() == made.vocab_size
        for part, count in (("train", made.tokens), ("held_out", made.held_out_tokens)):
            found = tokens(tmp_path / "out", made.vocab_size, part)
            assert len(found) == count
            text = tokenizer.decode(found.tolist(), skip_special_tokens=False)
            assert text == "".join(f"{text}<|endoftext|>" for text in expected[part])


def test_lengths_counts_and_bytes_are_those_of_the_tokens(tmp_path: Path, source: Path) -> None:
    card = prepare(corpus(source), tmp_path / "out")
    for size in card.sizes:
        folder = tmp_path / "out/tokens" / str(size.vocab_size)
        for number in range(3):
            documents = read_arrow(tmp_path / f"out/documents/{number:05}.arrow")
            shard = read_arrow(folder / f"{number:05}.arrow")
            described = json.loads(shard.schema.metadata[b"isoloss"])
            for part, held_out in (("train", False), ("held_out", True)):
                data = (folder / f"{number:05}.{part}.bin").read_bytes()
                assert described[f"{part}_sha256"] == hashlib.sha256(data).hexdigest()
                ends = np.flatnonzero(np.frombuffer(data, "<u2") == 0) + 1
                chosen = documents["held_out"].to_numpy() == held_out
                assert np.diff(ends, prepend=0).tolist() == shard["tokens"].to_numpy()[chosen].tolist()
        everything = np.concatenate([tokens(tmp_path / "out", size.vocab_size, part) for part in ("train", "held_out")])
        counts, bytes_of = np.load(folder / "counts.npy"), np.load(folder / "bytes.npy")
        assert counts.dtype == np.int64
        assert counts.tolist() == [int((everything == token).sum()) for token in range(size.vocab_size)]
        assert counts @ bytes_of == (card.bytes or 0) + (card.held_out_bytes or 0)
        assert counts[0] == (card.documents or 0) + (card.held_out_documents or 0)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".txt"])
def test_every_format_gives_the_same_tokens(tmp_path: Path, ending: str) -> None:
    for folder, suffix in (("a", ".parquet"), ("b", ending)):
        for number in range(2):
            write(tmp_path / folder / f"{number}{suffix}", rows(40, number))
    cards = [prepare(corpus(tmp_path / folder), tmp_path / "out" / folder) for folder in ("a", "b")]
    assert cards[0] == cards[1]
    for size in VOCAB_SIZES:
        for part in ("train", "held_out"):
            assert np.array_equal(*(tokens(tmp_path / "out" / folder, size, part) for folder in ("a", "b")))


def test_the_digest_pins_the_documents_however_they_lie_in_files(tmp_path: Path, source: Path) -> None:
    card = prepare(corpus(source), tmp_path / "out/1")
    write(tmp_path / "one/all.parquet", by_file_and_row(source))
    assert prepare(corpus(tmp_path / "one"), tmp_path / "out/2") == card
    others = {
        "fewer": corpus(source, where=Where(least_bytes=150)),
        "held out": corpus(source, held_out_bytes=4_000),
        "tokenizers": corpus(source, tokenizer=Ladder(280, 310, sample_bytes=20_000)),
    }
    digests = {prepare(asked, tmp_path / "out" / name).digest for name, asked in others.items()}
    assert len(digests | {card.digest}) == 4


def test_an_existing_tokenizer_is_used_as_it_is(tmp_path: Path, source: Path) -> None:
    ladder = prepare(corpus(source), tmp_path / "out/1")
    config = Tokenizer(file=str(tmp_path / "out/1/tokenizers/300.json"))
    card = prepare(corpus(source, tokenizer=config), tmp_path / "out/2")
    assert card.sizes == ladder.sizes[1:]
    assert np.array_equal(*(tokens(tmp_path / "out" / folder, 300, "train") for folder in "12"))


def test_a_hub_source_is_fetched_into_the_folder(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(hub: Hub, folder: Path, say: Callable[[str], None]) -> Files:
        asked.append((hub, folder))
        return Files(f"{source}/*")

    monkeypatch.setattr("isoloss.data.hub.fetch", fetch)
    hub = Hub.fineweb_edu(documents=120)
    card = prepare(corpus(source, source=hub), tmp_path / "out/1")
    assert asked == [(hub, tmp_path / "out/1")]
    assert card == prepare(corpus(source), tmp_path / "out/2")


# --- the same bytes, always


def test_the_order_of_the_work_leaves_no_trace(tmp_path: Path, source: Path) -> None:
    cards = [prepare(corpus(source), tmp_path / each.__name__, each) for each in (in_turn, backwards)]
    assert cards[0] == cards[1]
    assert contents(tmp_path / "in_turn") == contents(tmp_path / "backwards")


@pytest.mark.parametrize("stage", ["scan", "tokenise"])
def test_a_worker_that_dies_costs_its_file_alone(tmp_path: Path, source: Path, stage: str) -> None:
    with pytest.raises(RuntimeError):
        prepare(corpus(source), tmp_path / "out", failing(stage, after=1))
    left = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    done: list[tuple[str, int]] = []

    def counting(now: str, function: Callable[[str], int], jobs: Sequence[str]) -> Iterator[int]:
        done.append((now, len(jobs)))
        return in_turn(now, function, jobs)

    prepare(corpus(source), tmp_path / "out", counting)
    assert done == ([("scan", 2), ("tokenise", 3)] if stage == "scan" else [("tokenise", 2)])
    assert all(path.stat().st_mtime_ns == time for path, time in left.items())
    prepare(corpus(source), tmp_path / "undisturbed")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_an_interruption_at_any_file_changes_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = corpus(source, source=Files(str(source / "0.parquet")), tokenizer=Ladder(270), held_out_bytes=1_000)
    moves, rename = [0, 0], os.replace

    def interrupted(source: str, target: str) -> None:
        moves[0] += 1
        if moves[0] == moves[1]:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(written_files.os, "replace", interrupted)
    prepare(asked, tmp_path / "undisturbed")
    expected, total = contents(tmp_path / "undisturbed"), moves[0]
    assert total == len(expected) - 1  # but for the lock
    for number in range(1, total + 1):
        folder = tmp_path / f"out{number}"
        moves[:] = 0, number
        with pytest.raises(KeyboardInterrupt):
            prepare(asked, folder)
        assert not (folder / "card.json").exists()
        assert all(expected[name] == data for name, data in contents(folder).items())
        (folder / ".left.unfinished").write_text("by a process that was killed")
        prepare(asked, folder)
        assert contents(folder) == expected


DISK_FULL = """
import resource, signal, sys
from pathlib import Path
from isoloss.config.corpus import Corpus
from isoloss.data.card import DataError
from isoloss.data.prepare import prepare
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in 2_000, 5_000:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        prepare(Corpus.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
    except DataError as error:
        print(error)
"""


def test_a_full_disk_is_one_message_and_the_next_run_goes_on(tmp_path: Path, source: Path) -> None:
    asked, folder = corpus(source, tokenizer=Ladder(300)), tmp_path / "out"
    command = [sys.executable, "-c", DISK_FULL, asked.model_dump_json(), str(folder)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    assert shown.stdout.splitlines() == [
        f"cannot write {folder}/scan/00000.arrow: File too large",
        f"cannot write {folder}/tokens/300/00000.train.bin: File too large",
    ]
    assert not list(folder.rglob("*.unfinished"))
    prepare(asked, folder)
    prepare(asked, tmp_path / "undisturbed")
    assert contents(folder) == contents(tmp_path / "undisturbed")


# --- what is refused


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("where.score", 2.5, "where.score: {} was begun with None, and the corpus 'test' asks for 2.5"),
        ("held_out_bytes", 4_000, "held_out_bytes: {} was begun with 3000, and the corpus 'test' asks for 4000"),
        ("train_bytes", 9_000, "train_bytes: {} was begun with None"),
        ("name", "other", "name: {} was begun with test, and the corpus 'other' asks for other"),
        ("source.text", "content", "source.text: {} was begun with text"),
        ("source", Hub.fineweb(documents=5), "source.kind: {} was begun with files"),
        ("tokenizer.vocab_sizes", (280, 310), "tokenizer.vocab_sizes: {} was begun with (280, 300)"),
        ("tokenizer", Tokenizer(file="x.json"), "tokenizer.kind: {} was begun with ladder"),
    ],
)
def test_a_folder_is_of_one_corpus(tmp_path: Path, source: Path, path: str, value: Any, words: str) -> None:
    asked, folder = corpus(source), tmp_path / "out"
    with pytest.raises(RuntimeError):
        prepare(asked, folder, failing("scan", after=0))
    for _ in range(2):
        with pytest.raises(DataError) as error:
            prepare(replace(asked, path, value), folder)
        assert words.format(folder) in str(error.value)
        assert "another name, or delete the folder" in str(error.value)
        (folder / "card.json").write_text("{}")  # the second time it looks finished


def test_a_folder_of_another_format_is_refused(tmp_path: Path, source: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"format": 0, "corpus": {}}))
    with pytest.raises(DataError, match="has format 0, and this isoloss writes 1"):
        prepare(corpus(source), tmp_path)


def test_a_request_that_cannot_be_read_is_refused(tmp_path: Path, source: Path) -> None:
    asked = corpus(source)
    (tmp_path / "request.json").write_text(json.dumps({"format": 1, "corpus": {**asked.canonical, "new": 1}}))
    with pytest.raises(DataError, match=r"cannot read .*request\.json: new: .*delete"):
        prepare(asked, tmp_path)
    (tmp_path / "request.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot read .*request\.json"):
        prepare(asked, tmp_path)


def test_a_prepared_corpus_needs_its_sources_no_more(tmp_path: Path, source: Path) -> None:
    card = prepare(corpus(source), tmp_path / "out")
    for path in source.iterdir():
        path.unlink()
    assert prepare(corpus(source), tmp_path / "out") == card
    assert Prepared.model_validate_json((tmp_path / "out/card.json").read_text()) == card


def test_only_one_process_prepares_a_corpus(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out/prepare.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is preparing"):
            prepare(corpus(source), tmp_path / "out")
    prepare(corpus(source), tmp_path / "out")


def begun(source: Path, folder: Path, stage: str = "tokenise") -> None:
    with pytest.raises(RuntimeError):
        prepare(corpus(source), folder, failing(stage, after=0))


def rewritten(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def grown(path: Path) -> None:
    write(path, rows(41, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rewritten, "1.parquet, which .* was written again"),
        (grown, r"1.parquet, which .* had \d+ bytes and has \d+"),
        (Path.unlink, "1.parquet, which .* is gone"),
        (lambda path: write(path.with_name("3.parquet"), rows(3, 3)), "3.parquet, which .* is new"),
    ],
)
def test_source_files_that_changed_are_refused(
    tmp_path: Path, source: Path, change: Callable[[Path], object], words: str
) -> None:
    begun(source, tmp_path / "out")
    change(source / "1.parquet")
    with pytest.raises(DataError, match=words):
        prepare(corpus(source), tmp_path / "out")


def test_source_files_may_move(tmp_path: Path, source: Path) -> None:
    begun(source, tmp_path / "out")
    moved = source.rename(tmp_path / "elsewhere")
    rewritten(moved / "1.parquet")
    card = prepare(corpus(moved), tmp_path / "out")
    assert card == prepare(corpus(moved), tmp_path / "undisturbed")


@pytest.mark.parametrize("stage", ["scan", "tokenise"])
def test_a_text_that_changed_since_the_scan_is_found(tmp_path: Path, stage: str) -> None:
    documents = rows(60)
    path = write(tmp_path / "source/a.jsonl", documents)
    times = path.stat()
    data = path.read_bytes()

    def change() -> None:
        path.write_bytes(data.replace(b" 0/33", b" 0/34"))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def each(now: str, function: Callable[[str], int], jobs: Sequence[str]) -> Iterator[int]:
        if now == stage == "tokenise":
            change()
        yield from in_turn(now, function, jobs)
        if now == stage == "scan":
            change()

    with pytest.raises(DataError, match=r"a\.jsonl, row 33 .*no longer what it was when it was scanned"):
        prepare(corpus(tmp_path / "source"), tmp_path / "out", each)


def test_another_tokenizer_than_at_the_start_is_refused(tmp_path: Path, source: Path) -> None:
    prepare(corpus(source), tmp_path / "made")
    file = tmp_path / "tokenizer.json"
    asked = corpus(source, tokenizer=Tokenizer(file=str(file)))
    file.write_bytes((tmp_path / "made/tokenizers/280.json").read_bytes())
    with pytest.raises(RuntimeError):
        prepare(asked, tmp_path / "out", failing("tokenise", after=1))
    file.write_bytes((tmp_path / "made/tokenizers/300.json").read_bytes())
    with pytest.raises(DataError, match=r"tokenizer\.json is another tokenizer than .*280\.json"):
        prepare(asked, tmp_path / "out")


def test_documents_with_a_byte_that_has_no_token_are_dropped_and_named(tmp_path: Path) -> None:
    documents = [row | {"text": row["text"].translate({ord(c): "x" for c in "Москва"})} for row in rows(60)]
    documents[41]["text"] += " Ж"
    source = write(tmp_path / "source/a.parquet", documents).parent
    prepare(corpus(source), tmp_path / "made")
    parts = json.loads((tmp_path / "made/tokenizers/300.json").read_text())
    parts["model"]["vocab"]["zqzqzq"] = parts["model"]["vocab"].pop("Ð")  # the byte that begins Ж
    parts["model"]["merges"] = [merge for merge in parts["model"]["merges"] if "Ð" not in merge]
    (tmp_path / "lossy.json").write_text(json.dumps(parts))
    card = prepare(corpus(source, tokenizer=Tokenizer(file=str(tmp_path / "lossy.json"))), tmp_path / "out")
    dropped = json.loads((tmp_path / "out/documents/summary.json").read_text())["dropped"]
    assert dropped["byte without token"]["documents"] == 1
    assert dropped["byte without token"]["first"][0]["row"] == 41
    assert card.documents + card.held_out_documents == 59


def test_a_ladder_beyond_the_text_is_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(DataError, match="vocab_sizes: the training text supports at most"):
        prepare(corpus(source, tokenizer=Ladder(50_000)), tmp_path / "out")


# --- checking


CHECKED = [
    "documents/00001.arrow",
    "tokenizers/280.json",
    "tokens/280/00002.train.bin",
    "tokens/280/00000.held_out.bin",
    "tokens/300/00001.arrow",
    "tokens/300/counts.npy",
    "tokens/300/bytes.npy",
]


def test_checking_names_every_file_that_differs(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(DataError, match="holds no prepared corpus"):
        check(folder)
    prepare(corpus(source), folder)
    assert check(folder) == []
    for name in CHECKED:
        data = (folder / name).read_bytes()
        middle = len(data) // 2
        (folder / name).write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        assert check(folder) == [f"{name} has other bytes"]
        (folder / name).unlink()
        assert check(folder) == [f"{name} is missing"]
        (folder / name).write_bytes(data)
    (folder / "card.json").write_text((folder / "card.json").read_text().replace('"documents": ', '"documents": 1'))
    assert check(folder) == ["card.json says other than manifest.json"]
