"""Quantities that warn of training instability (Wortsman et al. 2023)."""

# B sequences, T positions, N tokens, H attention heads, K key/value heads, A = H + 2K, C width of one head,
# Q queries of one chunk

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from isoloss.model.decoder import Attention, LanguageModel, rotate
from isoloss.model.sharded import whole
from isoloss.tasks.base import UNSCORED

CHUNK_BYTES = 2**24
"""Bytes of attention logits that are held at once."""

NUMBERS_AT_ONCE = 2**22
"""Numbers of a parameter that are held in float64 at once."""

GROUPS = {
    "embedding": re.compile(r"embedding\."),
    "attention": re.compile(r"blocks\.\d+\.attention\."),
    "mlp": re.compile(r"blocks\.\d+\.mlp\."),
    "norm": re.compile(r"norm\.|blocks\.\d+\.(attention|mlp)_norm\."),
    "head": re.compile(r"head\."),
}
"""Groups of a ``LanguageModel``'s parameters, by how their names begin; a tied head's are the embedding's."""


@torch.no_grad()
def largest_attention_logit(model: LanguageModel, inputs_BT: Tensor) -> float:
    """Return the largest |q · k| / sqrt(C) over layers, heads and pairs of a query and a key that it may attend to.

    Products are in float32, of queries and keys as precise as the model makes them; nan where any is nan. A logit that
    grows without bound precedes divergence (Dehghani et al. 2023; Wortsman et al. 2023, section 3.1.1).
    """
    largest: list[Tensor] = []

    def watch(attention: Attention) -> RemovableHandle:
        return attention.inputs.register_forward_hook(
            lambda module, arguments, all_BTA: largest.append(_largest_logit(attention, all_BTA, model.rotation_2TC))
        )

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, Attention):
                hooks.enter_context(watch(module))
        model.hidden(inputs_BT)
    return float(torch.stack(largest).max())


@torch.no_grad()
def mean_log_z(log_z_N: Tensor, targets_N: Tensor) -> float:
    """Return the mean over scored tokens of log Z, the log of the softmax's denominator, in nats.

    Output logits that drift make it leave 0 (Chowdhery et al. 2022; Wortsman et al. 2023, section 3.1.2). It is nan
    where no token is scored.
    """
    return float(log_z_N[targets_N != UNSCORED].double().mean())


@torch.no_grad()
def root_mean_squares(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
    """Return the root mean square of all numbers of each group, of weights or gradients under their parameters' names.

    Groups that no name belongs to are left out. Raises ValueError for a name of no group.
    """
    squares: dict[str, list[Tensor]] = defaultdict(list)
    numbers: dict[str, int] = defaultdict(int)
    for name, tensor in tensors:
        group = group_of(name)
        numbers[group] += tensor.numel()
        squares[group] += [part.double().square().sum() for part in whole(tensor).flatten().split(NUMBERS_AT_ONCE)]
    # All leave the device at once: each transfer waits for it.
    mean_squares = torch.stack([torch.stack(squares[group]).sum() / numbers[group] for group in squares])
    return dict(zip(squares, mean_squares.sqrt().tolist(), strict=True))


def update_rms(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the root mean square of each group's change from one set of weights to another, both by name.

    Raises ValueError when their names differ.
    """
    if before.keys() != after.keys():
        raise ValueError(f"weights differ in name: {', '.join(sorted(before.keys() ^ after.keys()))}")
    return root_mean_squares((name, after[name].detach() - before[name].detach()) for name in after)


def group_of(name: str) -> str:
    """Return the group of the parameter of this name; raises ValueError where it has none."""
    for group, pattern in GROUPS.items():
        if pattern.match(name):
            return group
    raise ValueError(f"{name!r} is no parameter of a LanguageModel")


def _largest_logit(attention: Attention, all_BTA: Tensor, rotation_2TC: Tensor) -> Tensor:
    B, T, _ = all_BTA.shape
    H, K, C = attention.heads, attention.kv_heads, attention.head_width
    # Autocast would round the products to bfloat16.
    with torch.autocast(all_BTA.device.type, enabled=False):
        all_BATC = all_BTA.float().view(B, T, H + 2 * K, C).transpose(1, 2)
        query_BHTC, key_BKTC = rotate(all_BATC[:, : H + K], rotation_2TC).split([H, K], dim=1)
        key_BHCT = key_BKTC.repeat_interleave(H // K, dim=1).transpose(2, 3)
        size = max(1, CHUNK_BYTES // (4 * B * H * T))
        chunks = []
        for first in range(0, T, size):
            query_BHQC = query_BHTC[:, :, first : first + size]
            logits_BHQT = query_BHQC @ key_BHCT[..., : first + size]
            chunks.append(logits_BHQT.abs().tril(diagonal=first).max())
    return torch.stack(chunks).max() / C**0.5
