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


Search = Annotated[Union[Grid, Random, Optuna], Field(discriminator="kind")]
