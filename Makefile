# Each target works alone on a fresh machine: the virtual environment is made when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Ray starts a dozen processes: without compiled modules on disk each would compile torch and Ray again, for 8 s more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-slow test-long lint bench-overhead bench-logging bench-start bench-cost bench-boundary bench-data bench-heads chaos

install: $(STAMP)

# torch comes first, through the constraints: a plain `torch` would pull gigabytes of CUDA libraries. Compiling every
# module, also those that nobody imports, would take a minute.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/isoloss run studies/spamlang_coverage.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu"

# What takes long: MLflow's own pages in a browser (Debian's chromium), its server on PostgreSQL, several workers; then
# whole studies on Ray, one at a time: a Ray that starts beside other work on two cores runs into its own time limits.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow and not ray and not long and not gpu" --durations=10
	$(BIN)/python -m pytest -m "ray and not long and not gpu" --durations=10 tests/e2e

# What takes minutes each: kills and interrupts, nodes that come and go, limits, a batch job, models shared out in every way.
test-long: $(STAMP)
	$(BIN)/python -m pytest -m "long" --durations=10 tests/e2e

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Half an hour; parts: see `python -m benchmarks.overhead --help`.
bench-overhead: $(STAMP)
	$(BIN)/python -m benchmarks.overhead listing
	$(BIN)/python -m benchmarks.overhead scale
	$(BIN)/python -m benchmarks.overhead scale --trials 10000 --untrained
	$(BIN)/python -m benchmarks.overhead documented

bench-logging: $(STAMP)
	$(BIN)/python benchmarks/logging_cost.py

bench-start: $(STAMP)
	$(BIN)/python benchmarks/start.py

bench-cost: $(STAMP)
	$(BIN)/python -m benchmarks.cost

bench-boundary: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.boundary

# Parts: see `python -m benchmarks.data --help`.
bench-data: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/loader.py
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.data

# Parts: see `python -m benchmarks.heads --help`.
bench-heads: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.heads

# A study under 40 faults, in some 25 minutes; needs root for a disk to fill, and a C compiler for a clock that jumps.
chaos: $(STAMP)
	$(BIN)/python -m benchmarks.chaos
