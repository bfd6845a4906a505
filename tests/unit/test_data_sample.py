"""The sample: documents are docstrings of an installed library, in FineWeb's schema and a fair order."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isoloss.data import sample
from isoloss.data.card import DataError

LINE = "It says what the function returns, in what unit, and what it raises when that cannot be had.\n"
MODULE = f'''
"""A short module. {LINE * 4}"""

def plain():
    """Return nothing. {LINE * 3}"""
    if True:
        def inner():
            "Inside."
    return {{"key": "no docstring"}}

class Thing:
    r"""A thing \\d. {LINE}"""

    async def act(self): "Act."
'''
LONG = f'''
"""A long module, in parts."""

class Large:
    """A large class. {LINE * 60}"""

    def first(self):
        """The first. {LINE * 50}"""

    def second(self):
        """The second is short."""

def alone():
    """Alone and longer than any document. {LINE * 120}"""

def short():
    """Too short for a document."""
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed library, ``demo`` 1.2, which is all that the sample is made of; loaded, it would raise."""
    files = {
        "demo/__init__.py": MODULE + "\nraise RuntimeError('imported')\n",
        "demo/long.py": LONG,
        "demo/copy.py": MODULE,
        "demo/tests/test_it.py": MODULE.replace("short", "tested"),
        "demo/data.txt": LINE * 9,
        "demo-1.2.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: demo\nVersion: 1.2\nProject-URL: Homepage, https://demo.org\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "site/demo-1.2.dist-info/RECORD").write_text("".join(f"{name},,\n" for name in files))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(sample, "LIBRARIES", ("demo",))
    return tmp_path


def rows(path: Path) -> dict[str, dict[str, object]]:
    return {row["id"]: row for row in pq.read_table(path).to_pylist()}


def test_documents_are_docstrings_of_modules_and_of_the_parts_of_long_ones(library: Path) -> None:
    size = sample.write_sample(library / "sample.parquet")
    found = rows(library / "sample.parquet")
    lines = LINE.rstrip()
    short = "\n\n".join([
        f"A short module. {(LINE * 4).rstrip()}", f"Return nothing. {(LINE * 3).rstrip()}", "Inside.",
        f"A thing \\d. {lines}", "Act.",
    ])  # fmt: skip
    texts = {
        "demo.copy": short,  # and no demo, since that is the same text
        "demo.long.Large": f"A large class. {(LINE * 60).rstrip()}",
        "demo.long.Large.first": f"The first. {(LINE * 50).rstrip()}",
        "demo.long.alone": f"Alone and longer than any document. {(LINE * 120).rstrip()}",
    }
    assert {id: row["text"] for id, row in found.items()} == {
        f"<urn:docstring:demo-1.2:{name}>": text for name, text in texts.items()
    }
    assert size == sum(len(text.encode()) for text in texts.values())
    one = found["<urn:docstring:demo-1.2:demo.copy>"]
    assert (one["dump"], one["url"], one["date"]) == ("docstrings", "https://demo.org", None)
    assert (one["file_path"], one["language"], one["language_score"]) == ("demo/copy.py", "en", 1.0)
    assert one["token_count"] == len(short.split())


def test_the_schema_is_fineweb_s(library: Path) -> None:
    sample.write_sample(library / "sample.parquet")
    text, real, whole = pa.string(), pa.float64(), pa.int64()
    assert pq.read_schema(library / "sample.parquet").equals(
        pa.schema(
            {"text": text, "id": text, "dump": text, "url": text, "date": text, "file_path": text, "language": text,
             "language_score": real, "token_count": whole}
        )
    )  # fmt: skip


def test_fewer_bytes_are_a_prefix_in_an_order_that_the_ids_decide(library: Path) -> None:
    size = sample.write_sample(library / "all.parquet")
    everything = list(rows(library / "all.parquet"))
    assert everything == sorted(everything, key=lambda id: hashlib.sha256(id.encode()).hexdigest())
    few = sample.write_sample(library / "few.parquet", size - 1)
    assert few < size
    assert list(rows(library / "few.parquet")) == everything[:-1]
    sample.write_sample(library / "again.parquet")
    assert (library / "again.parquet").read_bytes() == (library / "all.parquet").read_bytes()


def test_what_cannot_be_written_is_told(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"sample.txt: .* end in .parquet"):
        sample.write_sample(library / "sample.txt")
    with pytest.raises(DataError, match=r"cannot write .*METADATA"):
        sample.write_sample(library / "site/demo-1.2.dist-info/METADATA/sample.parquet")
    monkeypatch.setattr(sample, "LIBRARIES", ("demo", "no-such-library"))
    with pytest.raises(DataError, match="no-such-library, which is not installed"):
        sample.write_sample(library / "sample.parquet")
