"""Preparing a corpus on Ray: one source file a task, as many at a time as there are CPUs, with progress on a terminal.

A single file, or a single worker, is handled in this process: Ray would only add its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import ray
from ray.exceptions import RayError, RayTaskError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isoloss.config.corpus import Corpus
from isoloss.config.tasks import Prepared
from isoloss.data.job import Job, in_turn
from isoloss.data.prepare import prepare
from isoloss.errors import IsolossError
from isoloss.run.cluster import ClusterError, connect

ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
"""Of a worker: its task reserves one CPU."""

OBJECT_STORE_BYTES = 80 << 20
"""Of a Ray that is started here, near the least that it takes: tasks pass nothing but names and counts."""

RETRIES = 3


def prepare_on_ray(
    corpus: Corpus, folder: Path, address: str | None, workers: int | None, console: Console
) -> Prepared:
    """Do as ``isoloss.data.prepare.prepare``, with at most ``workers`` source files at a time, as many as CPUs if None.

    Raises what that raises, and ClusterError when the cluster cannot be reached or a file's workers keep dying.
    """
    with _bars(console) as bars:

        def each(stage: str, function: Callable[[str], int], jobs: Sequence[str]) -> Iterator[int]:
            here = workers == 1 or len(jobs) == 1
            results = in_turn(stage, function, jobs) if here else _on_ray(function, jobs, address, workers)
            return _shown(bars, stage, len(jobs), results)

        try:
            return prepare(corpus, folder, each, lambda text: bars.console.print(text, soft_wrap=True))
        finally:
            ray.shutdown()  # no task outlives this


def _on_ray(
    function: Callable[[str], int], jobs: Sequence[str], address: str | None, workers: int | None
) -> Iterator[int]:
    connect(address, ENVIRONMENT, num_cpus=workers, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    cpus = max(int(ray.cluster_resources().get("CPU", 0)), 1)
    most = min(cpus, workers or cpus)
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(function)
    waiting = iter(jobs)
    running: dict[ray.ObjectRef, str] = {}
    while True:
        for job in islice(waiting, most - len(running)):
            running[task.remote(job)] = job
        if not running:
            return
        [done], _ = ray.wait(list(running), num_returns=1)
        yield _result(done, running.pop(done))


def _result(done: ray.ObjectRef, job: str) -> int:
    try:
        return ray.get(done)
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, IsolossError) else error from None
    except RayError as error:
        raise ClusterError(
            f"a worker died {RETRIES + 1} times over {Job.model_validate_json(job).file.uri}: "
            f"{type(error).__name__}; as a rule its machine had too little memory: ask for fewer --workers, then run "
            "the same command to go on"
        ) from None


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("files"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=console, disable=not console.is_terminal,
    )  # fmt: skip


def _shown(bars: Progress, stage: str, files: int, results: Iterator[int]) -> Iterator[int]:
    """Pass on the bytes of text that each file had, and show how fast they come."""
    bar, size = bars.add_task(stage, total=files, rate=""), 0
    for result in results:
        size += result
        seconds = bars.tasks[bar].elapsed
        bars.update(bar, advance=1, rate=f"{size / 1e6 / seconds:.1f} MB/s" if seconds else "")
        yield result
