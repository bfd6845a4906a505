"""Settings of a run that are no part of the question: where and how its arithmetic is done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from isoloss.config.base import Part


class Settings(Part):
    """Device, precision and compilation of training, how it is shared out, and how often a trial can be resumed from.

    ``threads`` bounds torch's threads in each CPU worker: two processes of one thread beat one of two. ``micro_batch``
    is how many sequences a worker trains at once, at most; None: its whole share of the batch. ``shard`` shares out
    parameters, gradients and optimizer states among a slot's workers. ``data`` is the folder of prepared corpora, seen
    by every worker; empty: where ``isoloss.prepared`` looks.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    threads: Annotated[int, Field(ge=1)] = 1
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    shard: bool = False
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0
    data: str = ""

    @property
    def arithmetic(self) -> dict[str, Any]:
        """What decides a trial's numbers beside its key; results of different arithmetic are never mixed in a map.

        Workers, micro-batches and sharding are no part of it: they change the order of sums, and nothing but rounding.
        """
        return {"device": self.device, "dtype": self.dtype, "compile": self.compile, "threads": self.threads}
