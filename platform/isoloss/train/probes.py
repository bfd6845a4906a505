"""Probes while training: what is measured of a model at each evaluation, and of the update before it."""

# B sequences, T positions, N probed tokens, V vocabulary, M width, D columns of the last matrix

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from isoloss.config.parts import Probes
from isoloss.model.decoder import LanguageModel
from isoloss.model.heads.base import Head
from isoloss.model.loss import TokenGradients
from isoloss.model.sharded import head_gathered, whole
from isoloss.probe import stability, updates
from isoloss.probe.contexts import context_ids, unique_continuations
from isoloss.probe.frequency import GROUPS, group_of_kinds
from isoloss.probe.jacobian import function_survival
from isoloss.probe.spectrum import anisotropy, log_probability_rank, spectrum
from isoloss.probe.survival import Survival, backprop_cosine, factor, kept
from isoloss.result import SPECTRUM_SERIES, STABILITY_SERIES, SURVIVAL_SERIES, UPDATE_SERIES
from isoloss.tasks.base import UNSCORED, Batch, HeldOut

SEQUENCES = 16
"""Held-out sequences that the probed tokens come from, unless their tokens are too few."""

JACOBIAN_TOKENS = 64
"""Tokens of a head that is not linear: each has a Jacobian of its own."""

UNAIDED_TOKENS = 16
"""The same where no last matrix shortens the search: each token then takes up to M steps."""

LOG_PROBABILITIES = 2**25
"""Log-probabilities that are held at once."""

Values = Iterator[tuple[str, float]]


class Prober:
    """Measures one trial's model on fixed held-out tokens, the same on every worker."""

    def __init__(self, probes: Probes, held: HeldOut, device: torch.device) -> None:
        self.probes, self.device = probes, device
        self.batch, self.place_N = sample(held.batch, probes.tokens)
        self.targets_N = self.batch.targets_BT.flatten()[self.place_N]
        self.frequency_N: Tensor | None = None
        if held.bytes_U is not None:
            scored_N = held.batch.targets_BT[held.batch.targets_BT != UNSCORED]
            self.frequency_N = torch.from_numpy(group_of_kinds(scored_N.numpy()))[self.targets_N]
        self.of_update: dict[str, float] = {}
        self.before: dict[str, Tensor] = {}

    @property
    def series(self) -> tuple[str, ...]:
        """The names of what is measured."""
        asked = {
            SURVIVAL_SERIES: self.probes.survival,
            SPECTRUM_SERIES: self.probes.spectra,
            STABILITY_SERIES: self.probes.stability,
            UPDATE_SERIES: self.probes.updates,
        }
        return tuple(name for names, wanted in asked.items() if wanted for name in names)

    @torch.no_grad()
    def measure(self, model: LanguageModel) -> dict[str, float]:
        """Return the finite values by their names in results; none of a model whose weights are not finite."""
        if not all(bool(whole(parameter.sum()).isfinite()) for parameter in model.parameters()):
            return {}
        with head_gathered(model):
            return self._measure(model)

    def _measure(self, model: LanguageModel) -> dict[str, float]:
        inputs_BT, place_N = self.batch.inputs_BT.to(self.device), self.place_N.to(self.device)
        hidden_NM, targets_N = model.hidden(inputs_BT).flatten(0, 1)[place_N], self.targets_N.to(self.device)
        values = dict(self.of_update)
        self.of_update = {}
        wanted = self.probes.survival or self.probes.stability
        gradients = model.head.logit_gradients(hidden_NM, targets_N) if wanted else None
        if self.probes.survival:
            values.update(self._survival(model.head, hidden_NM, targets_N, gradients))
        if self.probes.spectra:
            values.update(_spectra(model.head, hidden_NM))
        if self.probes.stability:
            values["attention_logit"] = stability.largest_attention_logit(model, inputs_BT)
            if gradients is not None:
                values["log_z"] = stability.mean_log_z(gradients.log_z_N, targets_N)
        if self.probes.updates:
            values.update(self._updates(model.head, hidden_NM, targets_N))
        return {name: value for name, value in values.items() if math.isfinite(value)}

    # --- the update before an evaluation

    def before_update(self, model: LanguageModel) -> None:
        """Look at the gradients, before they are clipped, and keep the parameters."""
        if self.probes.stability:
            named = list(model.named_parameters())
            gradients = [(name, parameter.grad) for name, parameter in named if parameter.grad is not None]
            self._note("gradient", stability.root_mean_squares(gradients))
            self.before = {name: parameter.detach().clone() for name, parameter in named}

    def after_update(self, model: LanguageModel) -> None:
        """Look at what the update changed."""
        if self.probes.stability:
            self._note("update", stability.update_rms(self.before, dict(model.named_parameters())))
            self.before = {}

    def _note(self, of: str, by_group: dict[str, float]) -> None:
        self.of_update.update({f"{of}_rms_{group}": value for group, value in by_group.items()})

    # --- the probes

    def _survival(self, head: Head, hidden_NM: Tensor, targets_N: Tensor, gradients: TokenGradients | None) -> Values:
        frequency_N, weight_VD = self.frequency_N, head.last_matrix()
        if gradients is not None and weight_VD is not None:
            of = factor(weight_VD)
            survival = Survival(kept(gradients.gradient_ND, of), gradients.total_N, of.rank, len(weight_VD))
            yield "backprop_cosine", backprop_cosine(gradients.gradient_ND, gradients.total_N, of.gram_DD)
        else:
            few = spread(len(targets_N), UNAIDED_TOKENS if weight_VD is None else JACOBIAN_TOKENS)
            frequency_N = None if frequency_N is None else frequency_N[few]
            few = few.to(self.device)
            survival = function_survival(head, hidden_NM[few], targets_N[few])
        yield "suppressed", survival.suppressed
        yield "cosine", survival.cosine
        yield "gain", survival.gain
        yield "survival_rank", float(survival.rank)
        yield "suppressed_mean", survival.mean
        yield from zip(
            ("suppressed_p10", "suppressed_p50", "suppressed_p90"), survival.quantiles((0.1, 0.5, 0.9)), strict=True
        )
        if frequency_N is not None:
            for group, part in survival.by_group(frequency_N).items():
                yield f"suppressed_{GROUPS[group]}", part.suppressed

    def _updates(self, head: Head, hidden_NM: Tensor, targets_N: Tensor) -> Values:
        only_BT = torch.full_like(self.batch.targets_BT, UNSCORED)
        only_BT.view(-1)[self.place_N] = self.targets_N
        yield "ideal_rank", float(unique_continuations(self.batch.inputs_BT, only_BT).ideal_rank(head.vocab_size))
        weight_VD = head.last_matrix()
        if weight_VD is None or not head.linear:
            return
        of = (head.last_input(hidden_NM), weight_VD, targets_N, head.last_bias())
        context_N = context_ids(self.batch.inputs_BT, only_BT).to(self.device)
        gram_CC = updates.by_context(updates.gram(updates.gradient_blocks(*of)), context_N)
        yield "ideal_tail", updates.tail_bound(gram_CC, weight_VD.shape[1])
        update = updates.first_order_update(*of)
        yield "update_rank", float(update.rank)
        yield "update_cosine", update.cosine


def _spectra(head: Head, hidden_NM: Tensor) -> Values:
    weight_VD = head.last_matrix()
    if weight_VD is not None:
        yield from _spectrum("head", weight_VD)
    yield from _spectrum("hidden", hidden_NM)
    yield "anisotropy", anisotropy(hidden_NM)
    if head.linear and weight_VD is not None and head.last_bias() is None:
        yield "log_probability_rank", float(log_probability_rank(head.last_input(hidden_NM), weight_VD))
    few = spread(len(hidden_NM), max(64, LOG_PROBABILITIES // head.vocab_size)).to(hidden_NM.device)
    yield "log_probability_effective_rank", spectrum(head.log_probabilities(hidden_NM[few])).effective_rank


def _spectrum(of: str, matrix: Tensor) -> Values:
    found = spectrum(matrix)
    yield f"{of}_effective_rank", found.effective_rank
    yield f"{of}_entropy", found.entropy
    yield f"{of}_condition", found.condition
    yield f"{of}_top1", found.top_share


def sample(batch: Batch, tokens: int) -> tuple[Batch, Tensor]:
    """Return evenly spread sequences, and the places in them, flattened, of that many evenly spread scored tokens.

    Fewer where there are fewer.
    """
    rows = len(batch.inputs_BT)
    scored = int((batch.targets_BT != UNSCORED).sum())
    needed = max(SEQUENCES, math.ceil(1.25 * tokens * rows / scored))
    chosen = spread(rows, needed)
    part = Batch(batch.inputs_BT[chosen], batch.targets_BT[chosen])
    places = (part.targets_BT.flatten() != UNSCORED).nonzero().flatten()
    return part, places[spread(len(places), tokens)]


def spread(length: int, count: int) -> Tensor:
    """Return ``count`` evenly spread places from 0 to ``length`` - 1, with both ends; all if there are fewer."""
    return torch.linspace(0, length - 1, min(count, length), dtype=torch.float64).round().long()
