"""A checkpoint: all that the rest of a trial depends on, whole, however many workers hold it in whatever parts."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from isoloss.model.decoder import LanguageModel
from isoloss.train.workers import Workers

FORMAT = 2
"""Of what ``pack`` returns. A trial whose checkpoint has another starts again, and comes to the same numbers."""


def pack(model: LanguageModel, optimizer: torch.optim.Optimizer, rest: dict[str, Any], workers: Workers) -> bytes:
    """Return weights and optimizer state by the parameters' names, and ``rest``; empty on workers but the first.

    All workers take part, since each may hold a part only. The first holds the whole state twice for a moment, in its
    machine's memory.
    """
    weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if workers.rank != 0:
        return b""
    buffer = io.BytesIO()
    torch.save({**rest, "format": FORMAT, "model": weights, "optimizer": states}, buffer)
    return buffer.getvalue()


def unpack(
    data: bytes | None, key: str, model: LanguageModel, optimizer: torch.optim.Optimizer, workers: Workers
) -> dict[str, Any] | None:
    """Load into model and optimizer what ``pack`` returned, and return its ``rest``; None where there is none to use.

    The first worker alone needs it, and gives each worker its part, a tensor at a time. Raises ValueError when
    ``rest["key"]`` is not ``key``.
    """
    weights: dict[str, Any] = {}
    states: dict[str, Any] = {}
    rest: dict[str, Any] | None = None
    if workers.rank == 0 and data is not None:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if state.pop("format", None) == FORMAT:
            weights, states, rest = state.pop("model"), state.pop("optimizer"), state
    rest = workers.from_first(rest)
    if rest is None:
        return None
    if rest["key"] != key:
        raise ValueError(f"the checkpoint is of trial {rest['key']}, not of {key}")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=workers.count > 1)
    # Not set_state_dict, which takes a worker without weights for one that loads none.
    set_model_state_dict(model, weights, options=options)
    set_optimizer_state_dict(model, optimizer, states, options=options)
    return rest
