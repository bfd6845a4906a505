"""A model shared out among workers (FSDP2, Zhao et al. 2023): each holds a part of every parameter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from isoloss.model.decoder import LanguageModel
from isoloss.study import Trial


def sharded_model(trial: Trial, device: torch.device) -> LanguageModel:
    """Return the trial's model, of which each worker of the process group holds its part: same values, same losses.

    Embedding, blocks and head are gathered one at a time, while they compute; a tied embedding and the last norm stay
    gathered for the whole update. No worker ever holds more of the initial model than its part and one parameter.
    """
    with _matrices_on_meta():
        model = LanguageModel(trial)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    if not any(tensor is model.embedding.weight for tensor in model.head.trained()):
        fully_shard(model.embedding, mesh=mesh)
        # Its backward pass follows at once: freed between, it would only be gathered again.
        fully_shard(model.head, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss")
    for method in ("training_loss", "loss"):
        register_fsdp_forward_method(model.head, method)
    model.load_state_dict(dict(_drawn(model, trial, device)), strict=False, assign=True)
    return model


@contextmanager
def _matrices_on_meta() -> Iterator[None]:
    """Let modules be built without memory for their matrices; vectors, which few draw, are as built."""

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        return nn.Parameter(parameter.to("meta")) if parameter is not None and parameter.ndim > 1 else None

    hook = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]  # may return one
    try:
        yield
    finally:
        hook.remove()


def _drawn(model: LanguageModel, trial: Trial, device: torch.device) -> Iterator[tuple[str, DTensor]]:
    """Yield this worker's part of each parameter that has no memory yet, drawn as the whole would be."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            assert isinstance(parameter, DTensor)
            value = torch.full(parameter.shape, torch.nan)  # so that a parameter that nobody draws is noticed
            model.draw(trial, name, value)
            # Every worker draws the same: nothing needs to be sent.
            part = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
            yield name, part


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor of which each worker may hold a part; all workers take part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextmanager
def head_gathered(model: LanguageModel) -> Iterator[None]:
    """Let every worker hold all of the head and of a tied embedding, to read them outside of a forward pass."""
    units = [module for module in (model, model.head) if isinstance(module, FSDPModule)]
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        release(model)


def release(model: LanguageModel) -> None:
    """Let every worker keep its part of the model only, as after an update."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
