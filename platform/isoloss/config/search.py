"""Searches: which cells of the axes are tried, as declarations."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field

from isoloss.config.base import Part


class Grid(Part):
    """Every combination of the axes' points."""

    kind: Literal["grid"] = "grid"


class Random(Part):
    """``cells`` points of a scrambled Sobol sequence over the axes (``sobol=False``: independent uniform draws)."""

    kind: Literal["random"] = "random"
    cells: Annotated[int, Field(ge=1)]
    sobol: bool = True


class Optuna(Part):
    """``cells`` points that the named Optuna sampler asks for, minimising log10 of the capped excess loss.

    ``sampler`` is a class of ``optuna.samplers`` that takes a ``seed``; ``options`` are its other arguments.
    """

    kind: Literal["optuna"] = "optuna"
    sampler: str
    cells: Annotated[int, Field(ge=1)]
    options: dict[str, Any] = Field(default={})


class Boundary(Part):
    """Trials where it is least known whether training converges, until the map is known well enough.

    The search ends after ``trials`` trials; or when, at three checks in a row, the share of the space that the map is
    expected to have on the wrong side is at most ``tolerance`` and the median width of the 90 % intervals of the
    largest and smallest converging learning rates is at most ``width`` decades; or when noise keeps it from falling.

    A trial is one seed: a study's ``replicates`` are the seeds that take turns, and the most that one cell may be
    given. The first ``start`` trials cover the space evenly (None: 2 an axis, and 4). With ``observation="outcome"``
    a trial says only whether it converged, whatever its loss.
    """

    kind: Literal["boundary"] = "boundary"
    trials: Annotated[int, Field(ge=1)]
    tolerance: Annotated[float, Field(gt=0, lt=0.5)] = 0.03
    width: Annotated[float, Field(gt=0)] = 0.3
    start: Annotated[int, Field(ge=1)] | None = None
    observation: Literal["excess", "outcome"] = "excess"


Search = Annotated[Union[Grid, Random, Optuna, Boundary], Field(discriminator="kind")]
