"""What one pass over a public model found: numbers of every scored token, and the figures that sum them up."""

# N scored tokens, V vocabulary

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from isoloss.probe.frequency import GROUPS, group_of_kinds
from isoloss.probe.public_text import UNKNOWN
from isoloss.probe.spectrum import Spectrum
from isoloss.probe.survival import Survival


@dataclass(frozen=True)
class PublicProbe:
    """What was measured of a model on N scored tokens of the first ``documents`` documents, in windows of ``length``.

    ``token_N`` are the targets, ``bytes_N`` their bytes or UNKNOWN, ``loss_N`` in nats. ``rank_tokens`` is the size of
    the sample behind ``log_probability_rank``, which is at most that.
    """

    documents: int
    length: int
    token_N: NDArray[np.int64]
    bytes_N: NDArray[np.int64]
    loss_N: NDArray[np.float64]
    mean_log_z: float
    survival: Survival
    weight: Spectrum
    hidden: Spectrum
    anisotropy: float
    log_probability_rank: int
    rank_tokens: int

    @property
    def occurrences_N(self) -> NDArray[np.int64]:
        """How often the sample scores each token's kind."""
        return np.bincount(self.token_N)[self.token_N]

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of UTF-8 over the documents that their tokens spell; NaN where none is."""
        known_N = self.bytes_N != UNKNOWN
        total = int(self.bytes_N[known_N].sum())
        return float(self.loss_N[known_N].sum()) / math.log(2) / total if total else math.nan

    def figures(self) -> dict[str, float]:
        """Return every figure by name; NaN where there is none. Names of groups of tokens are ``rare/suppressed``."""
        survival = self.survival
        low, median, high = survival.quantiles((0.1, 0.5, 0.9))
        return {
            **_survival(survival, self.loss_N),
            "share": survival.share,
            "random_suppressed": math.sqrt(1 - survival.rank / survival.classes),
            "token_suppressed_mean": survival.mean,
            "token_suppressed_q10": low,
            "token_suppressed_q50": median,
            "token_suppressed_q90": high,
            **self._by_frequency(),
            "bits_per_byte": self.bits_per_byte,
            "bytes": float(self.bytes_N[self.bytes_N != UNKNOWN].sum()),
            "mean_log_z": self.mean_log_z,
            **_spectrum("weight", self.weight),
            **_spectrum("hidden", self.hidden),
            "anisotropy": self.anisotropy,
            "log_probability_rank": float(self.log_probability_rank),
            "rank_tokens": float(self.rank_tokens),
        }

    def _by_frequency(self) -> dict[str, float]:
        group_N = group_of_kinds(self.token_N)[self.token_N]
        found = self.survival.by_group(torch.from_numpy(group_N))
        parts = {GROUPS[group]: _survival(part, self.loss_N[group_N == group]) for group, part in found.items()}
        return {f"{name}/{key}": value for name, part in parts.items() for key, value in part.items()}

    def table(self) -> pa.Table:
        """Return a row for each scored token, in the order of the text: its kind, occurrences, kept, total, loss."""
        return pa.table(
            {
                "token": self.token_N.astype(np.int32),
                "occurrences": self.occurrences_N,
                "kept": self.survival.kept_N.numpy(),
                "total": self.survival.total_N.numpy(),
                "loss": self.loss_N,
            }
        )


def _survival(part: Survival, loss_N: NDArray[np.float64]) -> dict[str, float]:
    return {
        "tokens": float(len(loss_N)),
        "suppressed": part.suppressed,
        "cosine": part.cosine,
        "gain": part.gain,
        "loss": float(loss_N.mean()),
    }


def _spectrum(name: str, spectrum: Spectrum) -> dict[str, float]:
    return {
        f"{name}_rank": float(spectrum.rank),
        f"{name}_effective_rank": spectrum.effective_rank,
        f"{name}_condition": spectrum.condition,
        f"{name}_top_share": spectrum.top_share,
    }
