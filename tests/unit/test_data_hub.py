"""The hub: the first documents come in order, in files that a kill does not change, and mistakes are told in words.

The hub is stood in for by a folder of parquet files, which ``datasets`` opens by the same call and streams alike.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isoloss.config.corpus import Hub
from isoloss.data import hub
from isoloss.data.card import DataError

ROWS = 230
KEPT = ["text", "id", "dump", "language", "language_score", "score", "int_score"]


def fineweb_edu(first: int, count: int) -> pa.Table:
    """Some rows in FineWeb-Edu's schema; ``date`` is null, as it may be there."""
    rows = range(first, first + count)
    return pa.table(
        {
            "text": [f"Page {row}." + " More of it." * (row % 7) for row in rows],
            "id": [f"<urn:uuid:{row}>" for row in rows],
            "dump": [f"CC-MAIN-2024-{row % 5:02}" for row in rows],
            "url": [f"https://example.org/{row}" for row in rows],
            "date": pa.nulls(count, pa.string()),
            "file_path": ["s3://commoncrawl/x.warc.gz"] * count,
            "language": ["en"] * count,
            "language_score": [row / 1000 for row in rows],
            "token_count": [3] * count,
            "score": [row % 50 / 10 for row in rows],
            "int_score": [row % 5 for row in rows],
        }
    )


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "DOCUMENTS_OF_A_FILE", 60)
    monkeypatch.setattr(hub, "ROW_GROUP", 20)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "fineweb-edu"
    folder.mkdir()
    for number, (first, count) in enumerate(((0, 90), (90, 45), (135, 95))):
        pq.write_table(fineweb_edu(first, count), folder / f"{number:03}.parquet", row_group_size=32)
    return folder


def asked(remote: Path, documents: int = 200, config: str = "default") -> Hub:
    return Hub(dataset=str(remote), config=config, documents=documents)


def quiet(text: str) -> None:
    pass


def downloaded(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "source").glob("*.parquet"))}


def test_the_first_documents_come_in_order_in_the_columns_that_are_needed(remote: Path, tmp_path: Path) -> None:
    files = hub.fetch(asked(remote), tmp_path, quiet)
    paths = sorted(Path(files.pattern).parent.glob(Path(files.pattern).name))
    assert [pq.ParquetFile(path).metadata.num_rows for path in paths] == [60, 60, 60, 20]
    assert [pq.ParquetFile(path).metadata.num_row_groups for path in paths] == [3, 3, 3, 1]
    assert pa.concat_tables(map(pq.read_table, paths)) == fineweb_edu(0, 200).select(KEPT)
    assert (files.text, files.id) == ("text", "id")


class Killed(BaseException):
    """Ends a download as a signal would: no handler in the code expects it."""


@pytest.mark.parametrize("files", [1, 2, 3])
@pytest.mark.parametrize("moment", ["after its place was saved", "before"])
def test_a_killed_download_goes_on_with_the_same_bytes(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, moment: str
) -> None:
    hub.fetch(asked(remote), tmp_path / "undisturbed", quiet)
    folder = tmp_path / "killed"

    def kill(*arguments: object) -> None:
        if len(downloaded(folder)) == files:
            raise Killed

    with monkeypatch.context() as patch:
        if moment == "before":
            write = hub.write_text
            patch.setattr(hub, "write_text", lambda path, text: (kill(), write(path, text)))
        with pytest.raises(Killed):
            hub.fetch(asked(remote), folder, kill)
    before = downloaded(folder)
    said: list[str] = []
    hub.fetch(asked(remote), folder, said.append)
    assert len(before) == files
    assert len(said) == 4 - files + (moment == "before")
    assert downloaded(folder) == downloaded(tmp_path / "undisturbed")


def test_a_stream_that_breaks_off_is_told_and_goes_on_once_mended(remote: Path, tmp_path: Path) -> None:
    hub.fetch(asked(remote), tmp_path / "undisturbed", quiet)
    last = remote / "002.parquet"
    whole = last.read_bytes()
    last.write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"broke off: .*; run it again to go on"):
        hub.fetch(asked(remote), tmp_path / "broken", quiet)
    assert list(downloaded(tmp_path / "broken")) == ["00000.parquet", "00001.parquet"]
    assert not list(tmp_path.rglob("*.unfinished"))
    last.write_bytes(whole)
    hub.fetch(asked(remote), tmp_path / "broken", quiet)
    assert downloaded(tmp_path / "broken") == downloaded(tmp_path / "undisturbed")


def test_a_data_set_that_has_fewer_documents_gives_what_it_has(remote: Path, tmp_path: Path) -> None:
    said: list[str] = []
    hub.fetch(asked(remote, documents=1000), tmp_path, said.append)
    assert sum(pq.ParquetFile(tmp_path / "source" / name).metadata.num_rows for name in downloaded(tmp_path)) == ROWS
    assert said[-1] == f"{remote}: 230 of 1,000 documents downloaded"


def test_a_data_set_that_ends_with_a_file_leaves_no_empty_one(remote: Path, tmp_path: Path) -> None:
    (remote / "002.parquet").unlink()
    pq.write_table(fineweb_edu(135, 45), remote / "002.parquet")
    hub.fetch(asked(remote, documents=1000), tmp_path, quiet)
    assert list(downloaded(tmp_path)) == ["00000.parquet", "00001.parquet", "00002.parquet"]


def test_documents_without_ids_are_known_by_their_rows(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    pq.write_table(fineweb_edu(0, 30).select(["text"]), tmp_path / "plain" / "0.parquet")
    assert hub.fetch(asked(tmp_path / "plain"), tmp_path, quiet).id is None


def test_datasets_is_needed_until_the_download_has_ended(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = hub.fetch(asked(remote), tmp_path / "ended", quiet)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert hub.fetch(asked(remote), tmp_path / "ended", quiet) == files
    with pytest.raises(DataError, match=r"pip install 'isoloss\[hub\]'"):
        hub.fetch(asked(remote), tmp_path / "new", quiet)


def test_what_cannot_be_opened_is_named(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"config sample-10BT, .*Available: \['default'\]"):
        hub.fetch(asked(remote, config="sample-10BT"), tmp_path, quiet)
    with pytest.raises(DataError, match=r"cannot open .*nowhere, .*check these names"):
        hub.fetch(asked(tmp_path / "nowhere"), tmp_path, quiet)
    (tmp_path / "titles").mkdir()
    pq.write_table(pa.table({"title": ["a"], "body": ["b"]}), tmp_path / "titles" / "0.parquet")
    with pytest.raises(DataError, match="no column 'text'; it has 'title', 'body'"):
        hub.fetch(asked(tmp_path / "titles"), tmp_path, quiet)


def test_a_hub_out_of_reach_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"cannot open HuggingFaceFW/fineweb, config sample-10BT, revision main: .*"):
        hub.fetch(Hub.fineweb(documents=10), tmp_path, quiet)


def test_the_commit_is_read_off_the_addresses_of_the_files() -> None:
    from datasets.data_files import DataFilesDict, DataFilesList

    commit = "9bb295ddab0e05d785b879661af7260fed5140fc"
    url = f"hf://datasets/HuggingFaceFW/fineweb@{commit}/sample/10BT/000_00000.parquet"
    assert hub._commit(DataFilesDict({"train": DataFilesList([url], origin_metadata=[])})) == commit
    assert hub._commit(DataFilesDict({"train": DataFilesList(["/data/0.parquet"], origin_metadata=[])})) is None
