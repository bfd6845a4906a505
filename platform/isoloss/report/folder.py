"""A folder of results that exists whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isoloss.errors import IsolossError, UsageError

FILES = "files"
"""Where a manifest lists the files of its folder, itself left out."""


def write_folder(folder: Path, files: Mapping[str, bytes], manifest: str, about: Mapping[str, Any]) -> list[Path]:
    """Write all files and the manifest ``manifest``, which lists them and holds ``about``; return their paths.

    A folder that an earlier call wrote is replaced as a whole. Raises UsageError when it holds anything else, so that
    nothing of the user's is ever lost, and IsolossError when it cannot be written.
    """
    place = folder.resolve()
    text = json.dumps({**about, FILES: sorted(files)}, indent=2, allow_nan=False)
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    old = place.with_name(f".{place.name}.{os.getpid()}.old")
    try:
        check_folder(folder, manifest)
        part.mkdir(parents=True)
        for name, data in {**files, manifest: f"{text}\n".encode()}.items():
            (part / name).write_bytes(data)
        if place.exists():
            os.rename(place, old)
        os.rename(part, place)
    except OSError as error:
        raise IsolossError(f"cannot write {folder}: {error.strerror}") from None
    finally:
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)
    return [folder / name for name in (*files, manifest)]


def check_folder(folder: Path, manifest: str) -> None:
    """Raise UsageError when the folder holds what its manifest does not list, or is where the command runs."""
    place = folder.resolve()
    if Path.cwd().is_relative_to(place):
        raise UsageError(f"{folder} is the folder that the command runs in; name a new one")
    if not place.exists():
        return
    known = {manifest}
    if (place / manifest).is_file():
        known |= set(json.loads((place / manifest).read_text())[FILES])
    strangers = sorted(path.name for path in place.iterdir() if path.name not in known)
    if strangers:
        raise UsageError(f"{folder} holds {strangers[0]}, which this command did not write; name a new folder")
