"""Tokens by the frequency of their kind: what a head does to rare symbols differs from what it does to common ones."""

# N tokens, V vocabulary

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GROUPS = ("rare", "middle", "frequent")
"""Thirds of the tokens of a text, by how often the text has their kind."""


def group_of_kinds(token_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each kind up to the largest its place in GROUPS: kinds by their occurrences, cut at thirds of tokens.

    A kind goes where its middle token falls, so that thirds are as even as whole kinds allow.
    """
    count_V = np.bincount(token_N)
    order_V = np.argsort(count_V, kind="stable")
    middle_V = np.empty(len(count_V))
    middle_V[order_V] = np.cumsum(count_V[order_V]) - count_V[order_V] / 2
    return (len(GROUPS) * middle_V / len(token_N)).astype(np.int64)
