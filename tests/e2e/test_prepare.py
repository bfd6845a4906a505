"""Preparing on Ray: any process may be killed at any moment, and the files come out as in one process, undisturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from command import Command, isoloss, until

from isoloss.data.card import DataError
from isoloss.data.prepare import prepare
from isoloss.run.cluster import ClusterError
from isoloss.run.prepare import _on_ray
from isoloss.study_file import load_corpus

pytestmark = [pytest.mark.slow, pytest.mark.ray]

FILES, DOCUMENTS = 8, 400
CORPUS = """
from isoloss import Corpus, Files, Ladder

corpus = Corpus(
    name="kills", source=Files("source/*.parquet"), tokenizer=Ladder(300, 400, sample_bytes=100_000),
    held_out_bytes=50_000,
)
"""
WORKER = "ray::tokenise_file"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus of random words, some 10 MB in 8 files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ISOLOSS_DATA", raising=False)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(3000)]
    Path("source").mkdir()
    for file in range(FILES):
        texts = [" ".join(draw.choices(words, k=500)) for _ in range(DOCUMENTS)]
        ids = [f"{file}-{row}" for row in range(DOCUMENTS)]
        pq.write_table(pa.table({"text": texts, "id": ids}), f"source/{file}.parquet")
    Path("corpus.py").write_text(CORPUS)
    return tmp_path


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.long
def test_killed_workers_and_drivers_change_no_byte(place: Path) -> None:
    prepare(load_corpus("corpus.py"), place / "undisturbed")
    folder = place / ".isoloss/data/kills"

    def shards() -> int:
        return len(list(folder.glob("tokens/*/*.arrow")))

    run = Command("data", "prepare", "corpus.py", "--workers", "2", cwd=place)
    try:
        until(shards, "nothing was tokenised")
        time.sleep(random.random())
        run.kill(WORKER)
        before = shards()
        until(lambda: shards() > before, "no shard came after a worker's death")
        os.kill(run.process.pid, signal.SIGKILL)
    finally:
        run.end()
    assert not (folder / "card.json").exists(), "the corpus is too small to be killed while it is prepared"
    code, output = isoloss("data", "prepare", "corpus.py", "--workers", "2", cwd=place)
    assert code == 0, output
    assert everything(folder) == everything(place / "undisturbed")


def test_a_file_whose_workers_keep_dying_is_named(place: Path) -> None:
    def refuse(job: str) -> int:  # within the test, so that Ray carries it to workers that cannot import this file
        raise DataError(f"{job} is bad")

    def die(job: str) -> int:
        os._exit(1)

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(DataError, match="a job is bad"):
            list(_on_ray(refuse, ["a job"], None, 1))
        job = '{"folder": "x", "number": 0, "separator": "s", "source": {"pattern": "p"}, "where": {}, "file": '
        file = '{"uri": "/data/7.parquet", "name": "7.parquet", "size": 1, "modified": 1}}'
        with pytest.raises(ClusterError, match=r"a worker died 4 times over /data/7.parquet: .*fewer --workers"):
            list(_on_ray(die, [job + file], None, 1))
    finally:
        ray.shutdown()
