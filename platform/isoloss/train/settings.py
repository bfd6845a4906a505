"""Settings of a run that are no part of the question: where and how its arithmetic is done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from isoloss.config.base import Part


class Settings(Part):
    """Device, precision and compilation of training, and how often a trial can be resumed from.

    ``threads`` bounds torch's threads in each CPU worker: two processes of one thread beat one of two. ``data`` is the
    folder of prepared corpora, seen by every worker; empty: where ``isoloss.prepared`` looks.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    threads: Annotated[int, Field(ge=1)] = 1
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0
    data: str = ""

    @property
    def arithmetic(self) -> dict[str, Any]:
        """What decides a trial's numbers beside its key; results of different arithmetic are never mixed in a map."""
        return {"device": self.device, "dtype": self.dtype, "compile": self.compile, "threads": self.threads}
