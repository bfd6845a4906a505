"""What a checkup looks at, and the parts that need neither cluster nor server: this Python, and the state folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

LEAST_FREE_GB = 5.0
"""Free space below which a state folder is warned of: MLflow's artifacts and checkpoints of a study fit into this."""

GPU_SECONDS = 60.0
"""How long the driver or torch may take to answer."""

NAMED = ("isoloss", "torch", "ray", "mlflow", "optuna")
"""Packages whose versions are told."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; ``text`` says what was found and, where that is not ``ok``, what to do."""

    name: str
    state: Literal["ok", "warning", "failed"]
    text: str


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter most; "none" for what is missing."""
    return {"python": ".".join(map(str, sys.version_info[:3])), **{name: _version(name) for name in NAMED}}


def without_build(version: str) -> str:
    """Return a version without its build: 2.13.0+cpu and 2.13.0+cu130 are the same torch."""
    return version.partition("+")[0]


def check_packages(package: str = "isoloss") -> Check:
    """Say whether every package that ``package`` needs is here, in a version that it accepts."""
    try:
        needs = [Requirement(text) for text in metadata.requires(package) or ()]
    except metadata.PackageNotFoundError:
        # A submitted job brings the package along without what pip knows of it.
        return Check("packages", "warning", f"{package} is not installed here, so that its requirements are not known")
    wrong = []
    for need in needs:
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        found = _version(need.name)
        if found == "none" or not need.specifier.contains(found, prereleases=True):
            wrong.append(f"{need.name} is {found} and should be {need.specifier}")
    if wrong:
        return Check("packages", "failed", f"{'; '.join(wrong)}: install {package} again, with constraints.txt")
    told = ", ".join(f"{name} {version}" for name, version in versions().items())
    return Check("packages", "ok", told)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def check_platform_module(folder: Path) -> Check:
    """Say whether Python's own module ``platform`` is found by programs that start in ``folder``."""
    for hiding in (folder / "platform" / "__init__.py", folder / "platform.py"):
        if hiding.exists():
            return Check("platform", "failed", f"{hiding} hides Python's own module `platform`: remove or rename it")
    import platform

    if Path(platform.__file__).parent != Path(sysconfig.get_path("stdlib")):
        return Check("platform", "failed", f"{platform.__file__} hides Python's own module `platform`: rename it")
    return Check("platform", "ok", "Python's own module `platform` is not hidden")


TORCH_SEES = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps([names, torch.__version__, torch.version.cuda]))
"""


@dataclass(frozen=True)
class Gpus:
    """What a machine's driver says of its GPUs, a line each, and the names of those that torch can use."""

    there: tuple[str, ...]
    usable: tuple[str, ...]
    torch: str
    """Version of torch and of the CUDA that it was built for, or why it could not be asked."""


NO_GPUS = Gpus((), (), "")


def find_gpus(all_of_them: bool = False) -> Gpus:
    """Ask NVIDIA's driver, and torch in a process of its own; ``all_of_them``: those hidden from this process, too."""
    if shutil.which("nvidia-smi") is None:
        return NO_GPUS
    fields = "--query-gpu=name,memory.total,driver_version"
    there = _output("nvidia-smi", fields, "--format=csv,noheader").splitlines()
    environment = {
        name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES" or not all_of_them
    }
    try:
        names, version, cuda = json.loads(_output(sys.executable, "-c", TORCH_SEES, env=environment))
    except ValueError:
        return Gpus(tuple(there), (), f"torch {_version('torch')}, which cannot be loaded,")
    return Gpus(tuple(there), tuple(names), f"torch {version} ({f'CUDA {cuda}' if cuda else 'without CUDA'})")


def _output(*command: str, env: dict[str, str] | None = None) -> str:
    """Return what a program prints, or an empty text when it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=GPU_SECONDS, check=True, env=env).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def check_gpus(found: Gpus) -> Check:
    """Say which GPUs there are, and whether torch can use them."""
    if not found.there:
        return Check("gpus", "ok", "no NVIDIA GPU on this machine; --device cpu needs none")
    told = "; ".join(f"{count} x {line}" for line, count in Counter(found.there).items())
    if not found.usable:
        return Check("gpus", "failed", f"{told}: {found.torch} can use none of them; install torch for their driver")
    if len(found.usable) < len(found.there):
        seen = f"{len(found.usable)} of {len(found.there)}"
        return Check("gpus", "warning", f"{told}: {found.torch} can use {seen}; is CUDA_VISIBLE_DEVICES set?")
    return Check("gpus", "ok", f"{told}: {found.torch} can use all")


def check_folder(folder: Path) -> Check:
    """Say whether a state folder can hold ledgers: files are replaced whole, and locks keep a second driver out."""
    try:
        with sign(folder) as (file, _):
            file.write_bytes(b"old")
            other = file.with_suffix(".new")
            other.write_bytes(b"new")
            os.replace(other, file)
            if file.read_bytes() != b"new":
                return Check("folder", "failed", f"{folder}: a file that was replaced still reads as before")
            if not _locks(file):
                return Check(
                    "folder", "failed", f"{folder}: locks (flock) do not hold; two drivers could run one study"
                )
    except OSError as error:
        return Check("folder", "failed", f"{folder} cannot be used: {error.strerror or error}; choose another --state")
    free = shutil.disk_usage(folder).free / 1e9
    text = f"{folder}: files are replaced whole, locks hold, {free:,.0f} GB free"
    return Check("folder", "ok" if free >= LEAST_FREE_GB else "warning", text)


@contextmanager
def sign(folder: Path) -> Iterator[tuple[Path, str]]:
    """Make a file in a folder, whose text nobody else can know, and delete it afterwards; yield both."""
    folder.mkdir(parents=True, exist_ok=True)
    text = uuid.uuid4().hex
    file = folder / f".checkup-{uuid.uuid4().hex}"
    file.write_text(text)
    try:
        yield file, text
    finally:
        file.unlink(missing_ok=True)


def _locks(file: Path) -> bool:
    with open(file) as one, open(file) as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
