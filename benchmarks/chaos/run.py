"""One chaos run: cluster, servers, disk and clock of its own, and a driver that is started again until all is done."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from benchmarks.chaos import cluster, counts, servers
from benchmarks.chaos.study import study_text
from benchmarks.chaos.watch import Watch
from command import MARK, Command, command_line, end_processes, marked

from isoloss.run.ledger import Ledger

SLOTS = 2
DISK = "256m"
HOOK = Path(__file__).with_name("hook")

RAYS = "(raylet)"
"""What marks the lines that Ray prints of its own accord."""

PATIENCE_S = 300.0
"""How long drivers may go on ending by themselves before the run is given up."""


class Run:
    """What the faults strike. ``folder`` should be short: sockets are below it, whose names have a limit.

    Without ``store`` among the kinds of faults the ledger is in the state folder, else in a bucket. Ray's files and the
    state folder, which also holds the report, are on the disk that ``disk`` fills.
    """

    def __init__(self, folder: Path, trials: int, steps: int, kinds: list[str]) -> None:
        self.folder, self.trials = folder, trials
        self.study = folder / "chaos.py"
        self.study.write_text(study_text(trials, steps))
        self.counts, self.disk = folder / "counts", folder / "disk"
        for made in (self.counts, self.disk, folder / "mlflow"):
            made.mkdir()
        self.mark = uuid.uuid4().hex
        path = os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH"))))
        self.environment = {
            **os.environ, **cluster.ENVIRONMENT, MARK: self.mark, "PYTHONPATH": path, "OMP_NUM_THREADS": "1",
            "ISOLOSS_CHAOS_COUNTS": str(self.counts),
        }  # fmt: skip
        self.clock_file, self.clock_offset = folder / "clock", 0
        self.set_clock(0)
        self.clocked = self._clock() if "clock" in kinds else {}
        self.began = time.monotonic()
        self.exits: list[tuple[float, int, str]] = []  # of drivers that ended by themselves: when, code, last line
        self.failing_since = float("inf")
        self.finished = False
        with ExitStack() as stack:
            stack.callback(end_processes, self.mark)
            if "disk" in kinds:
                self._mount(stack)
            self.ledgers, self.store = str(self.disk / "ledger"), None
            if "store" in kinds:
                self.store = servers.object_store(folder, self.environment)
                self.ledgers = servers.make_bucket(self.store, self.environment)
            self.mlflow = servers.mlflow_server(folder / "mlflow", self.environment)
            self.nodes = cluster.Nodes(folder, self.disk, self.environment, dashboard=True)
            self.mlflow.wait()
            address, question, parameters = self.ledgers.partition("?")
            self.ledger = Ledger(f"{address}/chaos{question}{parameters}")
            self.watch = Watch(self.ledger)
            stack.callback(self.watch.close)
            self.start_driver()
            self.stack = stack.pop_all()

    # --- the driver

    def start_driver(self) -> None:
        """Start ``isoloss run``."""
        options = ("--slots", str(SLOTS), "--checkpoint-seconds", "1")
        self.driver = self.isoloss("run", self.study, "--address", self.nodes.address, *options)

    def isoloss(self, *arguments: str | Path) -> Command:
        """Start an ``isoloss`` command on this run's state, ledger and MLflow."""
        places = ["--state", str(self.disk), "--tracking-uri", self.mlflow.url]
        if self.store is not None:
            places += ["--ledger", self.ledgers]
        return Command(*arguments, *places, cwd=self.folder, environment={**self.environment, **self.clocked})

    def tend(self) -> None:
        """Start the driver again if it ended by itself before all was done."""
        code = self.driver.process.poll()
        if code == 0:
            self.finished = True
        elif code is not None:
            now = time.monotonic()
            said = [line for line in self.driver.output.splitlines() if line.strip() and RAYS not in line]
            self.exits.append((now - self.began, code, said[-1] if said else ""))
            self.failing_since = min(self.failing_since, now)
            if now - self.failing_since > PATIENCE_S:
                raise RuntimeError(f"drivers kept ending by themselves, last with: {self.driver.output}")
            self.start_driver()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tend()
            time.sleep(0.1)

    # --- what goes on

    def executions(self) -> list[counts.Execution]:
        """Return every execution of a trial so far."""
        return counts.executions(self.counts)

    def processes(self, *titles: str) -> list[tuple[int, str]]:
        """Return id and command line of this run's processes whose command line starts with one of ``titles``."""
        found = ((pid, command_line(pid)) for pid in marked(self.mark))
        return sorted((pid, title) for pid, title in found if title.startswith(titles))

    # --- disk and clock

    def set_clock(self, offset_s: int) -> None:
        """Set by how much the wall clock of the driver differs from the machine's."""
        self.clock_offset = offset_s
        new = self.clock_file.with_suffix(".new")
        new.write_text(str(offset_s))
        new.rename(self.clock_file)

    def _clock(self) -> dict[str, str]:
        """Return the environment of a process whose wall clock jumps with ``set_clock``."""
        library = self.folder / "clock.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HOOK / "clock.c"), "-ldl"]
        if shutil.which("cc") is None:
            raise SystemExit("a clock that jumps needs a C compiler: apt-get install gcc libc6-dev")
        subprocess.run(command, check=True)
        return {"LD_PRELOAD": str(library), "ISOLOSS_CHAOS_CLOCK": str(self.clock_file)}

    def _mount(self, stack: ExitStack) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "chaos", str(self.disk)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"a disk to fill cannot be mounted: {done.stderr.strip()}")
        stack.callback(subprocess.run, ["umount", "--lazy", str(self.disk)], check=True)
