"""The workers that train one trial together: their number, this one's rank, and what they exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Workers:
    """A group of data-parallel workers; one worker needs no process group."""

    rank: int = 0
    count: int = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of every worker's tensor."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value on every worker."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=None if dist.get_backend() == "gloo" else _cuda())
        return box[0]


def _cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
