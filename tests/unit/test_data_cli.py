"""The ``isoloss data`` commands, as a user types them: what they print, and what mistakes get to hear."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isoloss import Prepared, Size, cli, prepared

CORPUS = """
from isoloss import Corpus, Files, Hub, Ladder, Where

corpus = Corpus(
    name="small", source=Files("nowhere/*.parquet"), tokenizer=Ladder(257, 260),
    where=Where(least_bytes=20), held_out_bytes=200,
)

def web():
    return Corpus(name="web", source=Hub.fineweb(documents=5), tokenizer=Ladder(257))
"""
TEXTS = [
    *(f"Document number {row} of a small corpus." for row in range(40)),
    "Too short.",
    "Document number 7 of a small corpus.",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus's declaration and its one file, in which one text is short and one occurs twice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISOLOSS_DATA", str(tmp_path / "prepared"))
    (tmp_path / "corpus.py").write_text(CORPUS)
    ids = [f"<urn:uuid:{row}>" for row in range(len(TEXTS))]
    pq.write_table(pa.table({"text": TEXTS, "id": ids}), tmp_path / "small.parquet")
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Run ``isoloss data`` in this process; return (exit code, stdout, stderr)."""
    monkeypatch.setattr("sys.argv", ["isoloss", "data", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_prepared_corpus_is_told_listed_checked_and_found(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = call(capsys, monkeypatch, "prepare", "corpus.py", "--from", "small.parquet")
    assert (code, err) == (0, "")
    card = prepared("small")
    total = sum(len(text) for text in TEXTS[:40])
    assert (card.documents or 0) + (card.held_out_documents or 0) == 40
    assert (card.bytes or 0) + (card.held_out_bytes or 0) == total
    assert 200 <= (card.held_out_bytes or 0) < 200 + max(map(len, TEXTS))
    assert f"small: {card.documents} documents of {card.bytes:,} bytes to train on, " in out
    assert "dropped 1: too short; the first is row 40 of small.parquet, <urn:uuid:40>" in out
    assert "dropped 1: duplicate text; the first is row 41 of small.parquet, <urn:uuid:41>" in out
    # V = 257 has no merge: a token is a byte, or the separator after a document.
    assert card.sizes[0].tokens == (card.bytes or 0) + (card.documents or 0)
    assert f"{(card.bytes or 0) / card.sizes[0].tokens:.3f}" in out
    assert eval(out[out.index("Prepared(") :], {"Prepared": Prepared, "Size": Size}) == card
    files = {path: path.stat().st_mtime_ns for path in (here / "prepared").rglob("*")}

    code, out, err = call(capsys, monkeypatch, "prepare", "corpus.py", "--json")  # the files are no longer needed
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in (here / "prepared").rglob("*")} == files
    assert facts["digest"] == card.digest
    assert facts["sizes"][1]["bytes_per_token"] == (card.bytes or 0) / card.sizes[1].tokens
    assert facts["dropped"]["too short"]["documents"] == 1

    assert call(capsys, monkeypatch, "ls")[1] == (
        f"small: {card.documents} documents, {card.bytes:,} bytes, V 257, 260, digest {card.digest}\n"
    )
    assert call(capsys, monkeypatch, "check", "small")[:2] == (0, f"{here}/prepared/small is as it was prepared\n")
    (here / "prepared/small/tokens/260/bytes.npy").write_bytes(b"")
    (here / "prepared/small/tokens/257/00000.train.bin").unlink()
    assert call(capsys, monkeypatch, "check", "small")[:2] == (
        1, "tokens/257/00000.train.bin is missing\ntokens/260/bytes.npy has other bytes\n"
    )  # fmt: skip


def test_an_interrupt_says_how_to_go_on(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isoloss.run.prepare.prepare", interrupted)
    code, out, err = call(capsys, monkeypatch, "prepare", "corpus.py")
    assert (code, out, err) == (130, "", "isoloss: interrupted; run the same command to go on\n")


def test_a_corpus_that_was_begun_is_listed_as_such(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(capsys, monkeypatch, "ls")[1] == f"no corpus was prepared in {here}/prepared yet\n"
    code, out, err = call(capsys, monkeypatch, "prepare", "corpus.py")
    assert (code, out) == (2, "")
    assert err.startswith("isoloss: no file matches 'nowhere/*.parquet'")
    assert call(capsys, monkeypatch, "ls")[1] == "small: not finished; prepare it again to go on\n"
    assert json.loads(call(capsys, monkeypatch, "ls", "--json")[1]) == [
        {"name": "small", "folder": f"{here}/prepared/small"}
    ]


def test_study_files_are_loaded_with_the_data_folder_that_was_asked_for(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "where.py").write_text(f"{CORPUS}\nfrom isoloss.data.card import data_folder\nraise OSError(data_folder())")
    assert f"OSError: {here}/elsewhere" in call(capsys, monkeypatch, "prepare", "where.py", "--data", "elsewhere")[2]


def test_a_study_may_find_its_corpus_in_the_file_that_declares_it(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "both.py").write_text(f"{CORPUS}\nfrom isoloss import prepared\nstudy = prepared('small')\n")
    code, out, err = call(capsys, monkeypatch, "prepare", "both.py:study")
    assert (code, out) == (2, "")
    assert "both.py, line 13: no corpus 'small' is prepared" in err
    code, out, err = call(capsys, monkeypatch, "prepare", "both.py", "--from", "small.parquet")
    assert (code, err) == (0, "")


MISTAKES = {
    ("prepare", "missing.py"): "there is no study file missing.py",
    ("prepare", "corpus.py:other"): "corpus.py defines no corpus 'other'; it has corpus.py:corpus, corpus.py:web",
    ("prepare", "empty.py"): "empty.py defines no `corpus`; give it a line `corpus = Corpus(...)`",
    ("prepare", "wrong.py"): "wrong.py, line 2: Ladder: vocab_sizes.0: Input should be greater than or equal to 257",
    ("prepare", "corpus.py:web", "--from", "x"): "--from says where files are, and 'web' comes from the hub",
    ("prepare", "corpus.py", "--from", "x.csv"): "no file matches 'x.csv'",
    ("check", "small"): "small holds no prepared corpus; prepare it with `isoloss data prepare`",
    ("sample", "sample.csv"): "sample.csv: it is a parquet file, whose name must end in .parquet",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_told_in_one_message(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    (here / "empty.py").write_text("")
    (here / "wrong.py").write_text("from isoloss import Ladder\nLadder(100)\n")
    code, out, err = call(capsys, monkeypatch, *arguments)
    assert (code, out) == (2, "")
    assert MISTAKES[arguments] in err
    assert err.startswith("isoloss: ")
    assert err.count("\n") == 1
