"""Contexts of a sample and what follows them: the counts behind the rank of an ideal update (Godey & Artzi 2026)."""

# B sequences, T positions, N scored tokens, C distinct contexts, U pairs of a context and a next token

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isoloss.tasks.base import UNSCORED


class Contexts(NamedTuple):
    """Counts of a sample's contexts, as ``unique_continuations`` returns them.

    ``distinct`` contexts, of which ``unique`` have exactly one next token (the paper's |C_uu|). A context seen once has
    one next token whatever the language, so ``repeated_share``, the share of contexts seen at least twice, says how
    far ``unique`` is a fact of the language. ``distinct_next`` tokens follow the unique contexts: the rank of their
    one-hot rows.
    """

    distinct: int
    unique: int
    repeated_share: float
    distinct_next: int

    def ideal_rank(self, vocab_size: int) -> int:
        """Return D_u(N) = min(|C_uu|, V - 1), below which the paper says the rank of P - Ñ cannot be.

        With whole prefixes nearly every context of a text is unique, so that V - 1 is reached by the number of tokens
        alone; report ``distinct_next`` beside it.
        """
        return min(self.unique, vocab_size - 1)


def unique_continuations(inputs_BT: Tensor, targets_BT: Tensor, length: int | None = None) -> Contexts:
    """Count the contexts of the scored positions, exactly; see ``context_ids`` for what a context is.

    Raises ValueError when no position is scored, or when ``length`` is below 1.
    """
    context_N = context_ids(inputs_BT, targets_BT, length)
    next_N = targets_BT[targets_BT != UNSCORED]
    seen_C = context_N.bincount()
    pair_U = (context_N * (next_N.max() + 1) + next_N).unique()
    context_U, next_U = pair_U // (next_N.max() + 1), pair_U % (next_N.max() + 1)
    unique_C = context_U.bincount() == 1
    return Contexts(
        distinct=len(seen_C),
        unique=int(unique_C.sum()),
        repeated_share=float((seen_C > 1).double().mean()),
        distinct_next=len(next_U[unique_C[context_U]].unique()),
    )


def context_ids(inputs_BT: Tensor, targets_BT: Tensor, length: int | None = None) -> Tensor:
    """Return the context of each scored position as a number from 0 to C - 1; shape N, in the order of positions.

    A context is the tokens that precede the target within its sequence: all of them, or the last ``length``. Two are
    the same when they are token for token; near its start a sequence has shorter ones. No hash is involved.
    Raises ValueError when no position is scored, or when ``length`` is below 1.
    """
    if length is not None and length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    scored_BT = targets_BT != UNSCORED
    if not bool(scored_BT.any()):
        raise ValueError("no position is scored")
    whole = length is None or length >= inputs_BT.shape[1]
    ids_BT = _prefixes(inputs_BT) if whole else _windows(inputs_BT, length or 1)
    context_N: Tensor = ids_BT[scored_BT].unique(return_inverse=True)[1]
    return context_N


def _prefixes(inputs_BT: Tensor) -> Tensor:
    """Number the prefixes: one is a shorter one and a token, so two numbers stand for it."""
    prefix_B = torch.zeros_like(inputs_BT[:, 0])
    columns = []
    for position, token_B in enumerate(inputs_BT.unbind(1)):
        prefix_B = _number(prefix_B, token_B)
        columns.append(prefix_B + position * len(inputs_BT))  # prefixes of unequal length are never the same
    return torch.stack(columns, dim=1)


def _windows(inputs_BT: Tensor, length: int) -> Tensor:
    """Number the windows of up to ``length`` tokens: one is the window before it, shorter by one, and a token."""
    ids_BT = torch.zeros_like(inputs_BT)
    for _ in range(length):
        # 0 stands for the empty window before a sequence's first token
        before_BT = torch.cat([torch.zeros_like(ids_BT[:, :1]), ids_BT[:, :-1]], dim=1)
        ids_BT = _number(before_BT, inputs_BT) + 1
    return ids_BT


def _number(first: Tensor, second: Tensor) -> Tensor:
    """Number the distinct pairs of two equally shaped tensors of integers from 0."""
    numbers: Tensor = (first * (second.max() + 1) + second).unique(return_inverse=True)[1]
    return numbers
