"""A short chaos run: what may fail fails, one after another, and the study comes to the undisturbed bytes.

The long one, with a full disk, an object store that goes away and a clock that jumps, is ``make chaos``.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.chaos.__main__ import chaos

pytestmark = [pytest.mark.slow, pytest.mark.ray]

FAULTS = ["worker", "mlflow", "slot", "driver", "node"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets are below it."""
    made = Path(tempfile.mkdtemp(prefix="chaos"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_a_study_survives_its_workers_slots_driver_nodes_and_mlflow(folder: Path) -> None:
    broken, struck = chaos(folder, 10, 600, FAULTS, random.Random(1), pause=(0.3, 1.0), moving=1)
    assert broken == []
    assert [fault.kind for fault in struck] == FAULTS
