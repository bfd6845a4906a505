"""Sparse heads: alpha-entmax of the logits W h, which may give symbols no probability at all."""

# N tokens, V vocabulary, M width

from __future__ import annotations

import torch
import torch.nn.functional as F
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor, nn

from isoloss.config.heads import Entmax, Sparsemax
from isoloss.config.parts import Decoder
from isoloss.model.heads.base import Head, at_least_float32
from isoloss.model.loss import TokenGradients, chunk_tokens
from isoloss.tasks.base import UNSCORED

PARTIAL_SORT = 256
"""Logits of a token that are sorted at first; where more have probability, entmax sorts twice as many, and so on."""

HALVINGS = 30
"""Steps of the bisection where no closed form is known: its thresholds lie in an interval of length 1."""


class SparseHead(Head):
    """alpha-entmax of W h; sparsemax is alpha = 2.

    Training minimises the Fenchel-Young loss of the logits (Blondel et al. 2020, definition 2), whose gradient by them
    is p - y as the cross-entropy's is by a softmax's. The cross-entropy is measured of (1 - s) p + s / V, s the
    declared ``smoothing``, and so are the log-probabilities, since those of p may be infinite. Sparsemax starts with no
    probability for most of many symbols: an untrained head's measured loss is then nearer ln(V / s) than ln V.
    """

    def __init__(self, config: Sparsemax | Entmax, vocab_size: int, model: Decoder, embedding: nn.Embedding) -> None:
        super().__init__()
        self.vocab_size, self.std = vocab_size, model.initial_std
        self.smoothing = config.smoothing
        self.alpha = 2.0 if isinstance(config, Sparsemax) else config.alpha
        self.weight_VM = nn.Parameter(torch.empty(vocab_size, model.width))

    def initial_scale(self, name: str) -> float | None:
        return self.std

    def logits(self, hidden_NM: Tensor) -> Tensor:
        return F.linear(hidden_NM, self.weight_VM)

    def log_probabilities(self, hidden_NM: Tensor) -> Tensor:
        """Return the logarithm of the smoothed probabilities, in nats; N x V, float32."""
        probability_NV = entmax(self._shifted(hidden_NM), self.alpha)
        return (probability_NV * (1 - self.smoothing) + self.smoothing / self.vocab_size).log()

    def token_loss(self, hidden_NM: Tensor, targets_N: Tensor) -> Tensor:
        """Return Omega(y) - Omega(p) + z (p - y), Omega the negative Tsallis entropy of order alpha; Omega(y) = 0."""
        logits_NV = self._shifted(hidden_NM)
        with torch.no_grad():
            probability_NV = entmax(logits_NV, self.alpha)
            entropy_N = (1 - (probability_NV**self.alpha).sum(-1)) / (self.alpha * (self.alpha - 1))
        target_logit_N = logits_NV.gather(-1, targets_N.clamp(min=0)[:, None])[:, 0]
        # By p the loss has no slope, since p maximises z p - Omega(p): p may be held constant.
        loss_N = entropy_N + (probability_NV * logits_NV).sum(-1) - target_logit_N
        return loss_N.where(targets_N != UNSCORED, 0.0)

    def last_matrix(self) -> Tensor:
        return self.weight_VM

    @torch.no_grad()
    def logit_gradients(self, hidden_NM: Tensor, targets_N: Tensor) -> TokenGradients:
        """Return p - y of each token, the gradient of what is trained, as norm and as product with W."""
        size = chunk_tokens(self.vocab_size, 4, hidden_NM.device.type)
        chunks = zip(hidden_NM.split(size), targets_N.split(size), strict=True)
        parts = [self._logit_gradients(*chunk) for chunk in chunks]
        return TokenGradients(*map(torch.cat, zip(*parts, strict=True)))

    def _logit_gradients(self, hidden_NM: Tensor, targets_N: Tensor) -> TokenGradients:
        scored_N = targets_N != UNSCORED
        target_N1 = targets_N.clamp(min=0)[:, None]
        others_NV = entmax(self._shifted(hidden_NM), self.alpha).scatter(-1, target_N1, 0.0)
        # p_y - 1 as the sum over the others, since p_y and 1 may agree in all but the last digits.
        gradient_NV = others_NV.scatter(-1, target_N1, -others_NV.sum(-1, keepdim=True)) * scored_N[:, None]
        log_z_N = at_least_float32(self.logits(hidden_NM)).logsumexp(-1) * scored_N
        loss_N, total_N = self.token_loss(hidden_NM, targets_N), gradient_NV.square().sum(-1)
        return TokenGradients(loss_N, log_z_N, gradient_NV @ self.weight_VM, total_N)

    def _shifted(self, hidden_NM: Tensor) -> Tensor:
        """Return logits less their largest: without it a logit of 1e4 would leave probabilities but three digits."""
        logits_NV = at_least_float32(self.logits(hidden_NM))
        return logits_NV - logits_NV.detach().amax(-1, keepdim=True)


def entmax(logits_NV: Tensor, alpha: float) -> Tensor:
    """Return alpha-entmax probabilities of logits of which the largest is 0 (Peters et al. 2019, equation 10).

    By partial sorting for alpha of 1.5 and 2, by bisection otherwise, which takes several times as long.
    """
    # The package reads outside its arrays where a logit is not finite; here such a logit makes its probability NaN.
    finite_NV = logits_NV.nan_to_num(nan=0.0)
    first = min(PARTIAL_SORT, logits_NV.shape[-1])
    if alpha == 2:
        probability_NV = sparsemax(finite_NV, dim=-1, k=first)
    elif alpha == 1.5:
        probability_NV = entmax15(finite_NV, dim=-1, k=first)
    else:
        probability_NV = entmax_bisect(finite_NV, alpha=alpha, dim=-1, n_iter=HALVINGS)
    return probability_NV + 0 * logits_NV
