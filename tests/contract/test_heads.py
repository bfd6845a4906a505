"""Every head under the contract of ``head_contract.py``."""

from __future__ import annotations

import numpy as np
from head_contract import HeadContract, Weights

from isoloss import Linear, LowRank


def log_softmax(logits_NV: np.ndarray) -> np.ndarray:
    return logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))


class TestLinear(HeadContract):
    config = Linear()
    parameters_of_11_by_8 = 88

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ weights["weight_VM"].T)


class TestTiedLinear(HeadContract):
    config = Linear(tied=True)
    parameters_of_11_by_8 = 0

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        symbols_VM = weights["embedding"][:-1]  # the last row is the start token's, which is no symbol
        return log_softmax(hidden_NM @ symbols_VM.T)


class TestLowRank(HeadContract):
    config = LowRank(rank=3)
    parameters_of_11_by_8 = 3 * 11 + 3 * 8

    def naive_log_probabilities(self, weights: Weights, hidden_NM: np.ndarray) -> np.ndarray:
        return log_softmax(hidden_NM @ (weights["out_VD"] @ weights["in_DM"]).T)


class TestLowRankOfFullRank(TestLowRank):
    config = LowRank(rank=8)
    parameters_of_11_by_8 = 8 * 11 + 8 * 8
