"""The plans of the package, each against the contract."""

from __future__ import annotations

import pytest
from plan_contract import PlanContract, searching

from isoloss import Boundary, Choice, Grid, Log, Optuna, Random, Span, Study

RATE = {"optimizer.learning_rate": Log(1e-4, 1.0)}
SIZES = {"task.vocab_size": Choice(8, 16, 32, 64)}


class TestGrid(PlanContract):
    @pytest.fixture
    def study(self) -> Study:
        return searching(Grid())


class TestRandom(PlanContract):
    @pytest.fixture
    def study(self) -> Study:
        return searching(Random(cells=6), {**RATE, **SIZES})


class TestOptuna(PlanContract):
    repeatable = False  # Optuna's samplers draw from a stream that begins anew with each session

    @pytest.fixture
    def study(self) -> Study:
        return searching(Optuna(sampler="TPESampler", cells=6), {**RATE, **SIZES})


class TestBoundary(PlanContract):
    @pytest.fixture
    def study(self) -> Study:
        return searching(Boundary(trials=18), {**RATE, **SIZES})


class TestBoundaryOfOutcomesOverManyKindsOfAxes(PlanContract):
    @pytest.fixture
    def study(self) -> Study:
        axes = {
            **RATE,
            "optimizer.weight_decay": Span(0.0, 0.1),
            "model.width": Choice(8, 12),
            "head.tied": Choice(False, True),
        }
        return searching(Boundary(trials=16, observation="outcome"), axes, replicates=3)


class TestBoundaryOfASmallSpace(PlanContract):
    """Two cells of five seeds: the search may only repeat."""

    @pytest.fixture
    def study(self) -> Study:
        return searching(Boundary(trials=100), {"optimizer.learning_rate": Choice(1e-3, 5e-3)}, replicates=5)
