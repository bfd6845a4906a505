"""Output experts: logits of the k experts that a router chooses for each token (Shazeer et al. 2017)."""

# N tokens, n those of one expert, V vocabulary, M width, D rank of an expert, E experts, K active experts

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoloss.config.heads import Experts
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head, at_least_float32
from isoloss.model.heads.workers import sum_over_workers
from isoloss.model.loss import chunked_sum
from isoloss.tasks.base import UNSCORED


class Routes(NamedTuple):
    """Where tokens go: the router's probability of every expert, the experts chosen, and their weights g."""

    probability_NE: Tensor
    expert_NK: Tensor
    gate_NK: Tensor


class ExpertsHead(Head):
    """Logits sum over the K most likely of E experts of g_e A_e B_e h; g is a softmax of their K router values.

    Only the chosen experts are computed. Training adds to each scored token's cross-entropy ``balance`` times
    E sum_e f_e p_e (Fedus et al. 2022, equation 4): p_e is the router's probability, and f_e the share of all routes
    of the batch, over all workers, that go to e; it has no gradient. The router computes in float32, as theirs does.

    B_e h has unit variance at initialisation; each g is then 1 / K, so the sum's variance is 1 / K of one expert's,
    and A makes up for it.
    """

    def __init__(self, config: Experts, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.active, self.balance = vocab_size, config.active, config.balance
        experts, rank, width = config.experts, config.rank, model.width
        self.router_EM = nn.Parameter(torch.empty(experts, width))
        self.in_EDM = nn.Parameter(torch.empty(experts, rank, width))
        self.out_EVD = nn.Parameter(torch.empty(experts, vocab_size, rank))
        self.scales = {
            "router_EM": model.initial_std,
            "in_EDM": width**-0.5,
            "out_EVD": model.initial_std * (self.active * width / rank) ** 0.5,
        }

    def initial_scale(self, name: str) -> float | None:
        return self.scales[name]

    def logits(self, hidden_NM: Tensor) -> Tensor:
        return self._logits(hidden_NM, self.routes(hidden_NM))

    def token_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return cross-entropy and balance term, the shares f_e being those of the scored tokens given."""
        return self._token_loss(hidden_NM, targets_N, shares(self._counts(hidden_NM, targets_N)))

    def training_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        share_E = shares(sum_over_workers(self._counts(hidden_NM, targets_N)))
        token_loss = partial(self._token_loss, share_E=share_E)
        return chunked_sum(token_loss, hidden_NM, targets_N, self.trained(), self.vocab_size)

    def routes(self, hidden_NM: Tensor) -> Routes:
        """Return where tokens go; of experts with equal router values, the earlier is chosen on every device."""
        with torch.autocast(hidden_NM.device.type, enabled=False):
            router_NE = F.linear(hidden_NM.float(), self.router_EM.float())
        expert_NK = router_NE.sort(dim=-1, descending=True, stable=True).indices[:, : self.active]
        return Routes(router_NE.softmax(-1), expert_NK, router_NE.gather(-1, expert_NK).softmax(-1))

    def _logits(self, hidden_NM: Tensor, routes: Routes) -> Tensor:
        logits_NV = at_least_float32(hidden_NM.new_zeros(len(hidden_NM), self.vocab_size))
        for expert, (in_DM, out_VD) in enumerate(zip(self.in_EDM.unbind(), self.out_EVD.unbind(), strict=True)):
            token_n, choice_n = (routes.expert_NK == expert).nonzero(as_tuple=True)
            gate_n1 = routes.gate_NK[token_n, choice_n][:, None]
            part_nV = F.linear(gate_n1 * F.linear(hidden_NM[token_n], in_DM), out_VD)
            logits_NV.index_add_(0, token_n, at_least_float32(part_nV))
        return logits_NV

    def _counts(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return how many routes of scored tokens go to each expert."""
        with torch.no_grad():
            expert_nK = self.routes(hidden_NM).expert_NK[targets_N != UNSCORED]
            return torch.bincount(expert_nK.flatten(), minlength=len(self.router_EM))

    def _token_loss(self, hidden_NM: Tensor, targets_N: Tensor, share_E: Tensor) -> Tensor:
        routes = self.routes(hidden_NM)
        loss_N = F.cross_entropy(self._logits(hidden_NM, routes), targets_N, ignore_index=UNSCORED, reduction="none")
        balance_N = self.balance * len(share_E) * (routes.probability_NE * share_E).sum(-1)
        return loss_N + balance_N.where(targets_N != UNSCORED, 0.0)


def shares(counts_E: Tensor) -> Tensor:
    """Return counts over their sum, and zeros where all are 0."""
    return counts_E / counts_E.sum().clamp(min=1)
