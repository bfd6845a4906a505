"""What a public language model loses at its head, and how degenerate it is: one pass over a stream of documents."""

# N scored tokens, V vocabulary, M width, B windows, T positions, S tokens of a sample

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isoloss.model.loss import token_gradients
from isoloss.probe.hidden_states import HiddenStates
from isoloss.probe.public_model import ProbeError, PublicModel
from isoloss.probe.public_result import PublicProbe
from isoloss.probe.public_text import Window, batches, first_tokens, windows
from isoloss.probe.spectrum import Spectrum, log_probability_rank
from isoloss.probe.survival import Survival, factor, kept

LONGEST = 1024
"""Positions of a window, unless a model was built for fewer."""

CHECKED = 64
"""Positions on which a model's logits are compared with W h + b."""

Progress = Callable[[int, int], None]
"""Told the documents and tokens that are done."""


def window_length(model: PublicModel, length: int | None) -> int:
    """Return the positions of a window; raises ProbeError for more than the model was built for."""
    longest = model.longest or max(LONGEST, length or 0)
    if length is not None and length > longest:
        raise ProbeError(f"a window of {length} positions is longer than {model.name} was built for, {longest}")
    return length or min(LONGEST, longest)


def measure(
    model: PublicModel,
    texts: Iterable[str],
    *,
    length: int | None = None,
    batch: int = 8,
    tokens: int | None = None,
    progress: Progress = lambda documents, tokens: None,
) -> PublicProbe:
    """Measure a model on documents, at most ``tokens`` scored tokens, ``batch`` windows at a time.

    Raises ProbeError when the logits are not W h + b, a token has no row in W, or no token could be scored.
    """
    length = window_length(model, length)
    head = _Head(model)
    width = head.weight_VM.shape[1]
    # W h + b - log Z has at most two ranks more than W: twice as many tokens show it.
    states = HiddenStates(width, 2 * (width + 2), model.device)
    parts, documents = list[_Part](), 0
    found = first_tokens(windows(texts, model.encode, model.spelling, length), tokens)
    for some in batches(found, batch):
        ids_BT, scored_BT = _padded(some)
        if not parts:
            model.check(ids_BT[:1, : min(CHECKED, len(some[0].inputs_T))])
        hidden_NM = model.hidden(ids_BT)[scored_BT.to(model.device)].float()
        states.add(hidden_NM)
        parts.append(head.measure(hidden_NM, some))
        documents = some[-1].document + 1
        progress(documents, states.count)
    if not parts:
        raise ProbeError("no document has two tokens, so none can be scored")
    return _whole(documents, length, head, states, _Part(*map(torch.cat, zip(*parts, strict=True))))


def describe(model: PublicModel, measured: PublicProbe) -> dict[str, Any]:
    """Return what was measured on what: the model, its shape, and the sample."""
    head = model.head
    return {
        "model": model.name,
        "revision": model.revision,
        "dtype": str(head.weight.dtype).removeprefix("torch."),
        "device": model.device.type,
        "vocab_size": head.out_features,
        "tokenizer_size": len(model.tokenizer),
        "width": head.in_features,
        "tied": model.tied,
        "bias": head.bias is not None,
        "documents": measured.documents,
        "tokens": len(measured.token_N),
        "length": measured.length,
    }


class _Part(NamedTuple):
    """What is kept of each token, on the CPU; numbers in float64."""

    token_N: Tensor
    bytes_N: Tensor
    loss_N: Tensor
    log_z_N: Tensor
    kept_N: Tensor
    total_N: Tensor


class _Head:
    """The last matrix in float32, which the gradient is computed in whatever the model's precision is."""

    def __init__(self, model: PublicModel) -> None:
        self.weight_VM = model.head.weight.detach().float()
        self.bias_V = None if model.head.bias is None else model.head.bias.detach().float()
        self.basis = factor(self.weight_VM)

    def measure(self, hidden_NM: Tensor, some: list[Window]) -> _Part:
        token_N = torch.from_numpy(np.concatenate([window.targets_T for window in some]))
        bytes_N = torch.from_numpy(np.concatenate([window.bytes_T for window in some]))
        found = token_gradients(hidden_NM, self.weight_VM, token_N.to(hidden_NM.device), bias_V=self.bias_V)
        numbers = (found.loss_N, found.log_z_N, kept(found.gradient_ND, self.basis), found.total_N)
        return _Part(token_N, bytes_N, *(values_N.double().cpu() for values_N in numbers))

    def log_probability_rank(self, hidden_SM: Tensor) -> int:
        if self.bias_V is None:
            return log_probability_rank(hidden_SM, self.weight_VM)
        ones_S1 = torch.ones_like(hidden_SM[:, :1])
        with_bias_VD = torch.cat([self.weight_VM, self.bias_V[:, None]], dim=1)
        return log_probability_rank(torch.cat([hidden_SM, ones_S1], dim=1), with_bias_VD)


def _whole(documents: int, length: int, head: _Head, states: HiddenStates, all_: _Part) -> PublicProbe:
    return PublicProbe(
        documents=documents,
        length=length,
        token_N=all_.token_N.numpy(),
        bytes_N=all_.bytes_N.numpy(),
        loss_N=all_.loss_N.numpy(),
        mean_log_z=float(all_.log_z_N.mean()),
        survival=Survival(all_.kept_N, all_.total_N, head.basis.rank, len(head.weight_VM)),
        weight=Spectrum(head.basis.singular_R),
        hidden=states.spectrum(),
        anisotropy=states.anisotropy(),
        log_probability_rank=head.log_probability_rank(states.sample_SM),
        rank_tokens=len(states.sample_SM),
    )


def _padded(some: list[Window]) -> tuple[Tensor, Tensor]:
    """Return ids_BT and which positions are of a window; a causal model's are not changed by what follows them."""
    shape = len(some), max(len(window.inputs_T) for window in some)
    ids_BT, inside_BT = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
    for row, window in enumerate(some):
        ids_BT[row, : len(window.inputs_T)] = torch.from_numpy(window.inputs_T)
        inside_BT[row, : len(window.inputs_T)] = True
    return ids_BT, inside_BT
