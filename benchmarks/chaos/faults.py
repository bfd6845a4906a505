"""The faults: each strikes a run once, lasts its time, and says what it hit."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.chaos.run import Run
from command import until

WORKER = ("ray::RayTrainWorker",)
SLOT = ("ray::Slot", "ray::ResourceTrainable", "ray::ImplicitFunc")
"""How Ray calls the processes that train, and those of Tune's actors."""

HOUR_S = 3600


def worker(run: Run, draw: random.Random) -> str:
    """Kill -9 a process that trains."""
    return _kill(run, draw, WORKER)


def slot(run: Run, draw: random.Random) -> str:
    """Kill -9 the Tune actor of a slot."""
    return _kill(run, draw, SLOT)


def driver(run: Run, draw: random.Random) -> str:
    """Kill -9 the driver, and start it again at once."""
    process = run.driver.process
    process.kill()
    process.wait()
    run.start_driver()
    return f"process {process.pid}"


def node(run: Run, draw: random.Random) -> str:
    """Kill -9 a node with all its processes; another joins some seconds later."""
    raylet = draw.choice(run.nodes.ask("nodes"))
    lost = [
        title for pid, title in run.processes("ray::") if _parent(pid) == raylet and not title.startswith("ray::IDLE")
    ]
    run.nodes.ask(f"kill {raylet}")
    run.wait(draw.uniform(3, 8))
    run.nodes.ask("add")
    return f"with {', '.join(sorted(_short(title) for title in lost)) or 'nothing on it'}"


def mlflow(run: Run, draw: random.Random) -> str:
    """Kill -9 MLflow's server; it is started again after a while."""
    away = draw.uniform(4, 10)
    run.mlflow.kill()
    run.wait(away)
    run.mlflow.start()
    return f"away for {away:.0f} s"


def store(run: Run, draw: random.Random) -> str:
    """Take the object store away for 30 s: connections are taken, and nothing is answered."""
    assert run.store is not None
    run.store.stop()
    try:
        run.wait(30)
    finally:
        run.store.go_on()
    return "away for 30 s"


def disk(run: Run, draw: random.Random) -> str:
    """Fill the disk to the last byte for some seconds."""
    full = draw.uniform(4, 8)
    filler = run.disk / "filler"
    try:
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with suppress(OSError), open(filler, "ab", buffering=0) as file:
            while True:
                file.write(bytes(1))
        run.wait(full)
    finally:
        filler.unlink()
    return f"full for {full:.0f} s"


def clock(run: Run, draw: random.Random) -> str:
    """Let the wall clock jump by hours, forth or back; it stays there until the next jump."""
    offset = draw.choice([one for one in (-2 * HOUR_S, 0, 2 * HOUR_S) if one != run.clock_offset])
    run.set_clock(offset)
    return f"now {offset / HOUR_S:+.0f} h"


FAULTS: dict[str, Callable[[Run, random.Random], str]] = {
    one.__name__: one for one in (worker, slot, driver, node, mlflow, store, disk, clock)
}


def drawn(kinds: list[str], count: int, draw: random.Random) -> list[str]:
    """Return so many kinds of faults in random order, each as often as any other."""
    faults = [kinds[i % len(kinds)] for i in range(count)]
    draw.shuffle(faults)
    return faults


def _kill(run: Run, draw: random.Random, titles: tuple[str, ...]) -> str:
    found = until(lambda: run.processes(*titles), f"no process {' or '.join(titles)}", 120)
    pid, title = draw.choice(found)
    os.kill(pid, signal.SIGKILL)
    return f"process {pid} ({_short(title)})"


def _short(title: str) -> str:
    return title.removeprefix("ray::").split(".")[0].split("(")[0].strip()


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
