"""Chaos: a study on a local cluster whose processes, nodes, servers, disk and clock fail, and what it must come to."""

import sys
from pathlib import Path

# isoloss is driven, watched and killed here as the tests do it.
sys.path.append(str(Path(__file__).parents[2] / "tests" / "e2e"))
