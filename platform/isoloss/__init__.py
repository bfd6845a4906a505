"""isoloss maps where language models train and where they stop training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoloss.config.axes import Choice as Choice
    from isoloss.config.axes import Log as Log
    from isoloss.config.axes import Span as Span
    from isoloss.config.budgets import Bytes as Bytes
    from isoloss.config.budgets import Coverage as Coverage
    from isoloss.config.budgets import Flops as Flops
    from isoloss.config.budgets import Passes as Passes
    from isoloss.config.budgets import Steps as Steps
    from isoloss.config.budgets import Tokens as Tokens
    from isoloss.config.corpus import Corpus as Corpus
    from isoloss.config.corpus import Files as Files
    from isoloss.config.corpus import Hub as Hub
    from isoloss.config.corpus import Ladder as Ladder
    from isoloss.config.corpus import Tokenizer as Tokenizer
    from isoloss.config.corpus import Where as Where
    from isoloss.config.heads import Adaptive as Adaptive
    from isoloss.config.heads import BackwardRank as BackwardRank
    from isoloss.config.heads import DummyClasses as DummyClasses
    from isoloss.config.heads import Entmax as Entmax
    from isoloss.config.heads import Experts as Experts
    from isoloss.config.heads import Linear as Linear
    from isoloss.config.heads import LowRank as LowRank
    from isoloss.config.heads import Mixture as Mixture
    from isoloss.config.heads import Monotone as Monotone
    from isoloss.config.heads import ProjectedUpdate as ProjectedUpdate
    from isoloss.config.heads import Sigsoftmax as Sigsoftmax
    from isoloss.config.heads import Sparsemax as Sparsemax
    from isoloss.config.heads import Spherical as Spherical
    from isoloss.config.heads import Wide as Wide
    from isoloss.config.parts import AdamW as AdamW
    from isoloss.config.parts import Decoder as Decoder
    from isoloss.config.parts import Evaluation as Evaluation
    from isoloss.config.parts import Probes as Probes
    from isoloss.config.parts import Stop as Stop
    from isoloss.config.parts import WarmupStableDecay as WarmupStableDecay
    from isoloss.config.search import Boundary as Boundary
    from isoloss.config.search import Grid as Grid
    from isoloss.config.search import Optuna as Optuna
    from isoloss.config.search import Random as Random
    from isoloss.config.tasks import Prepared as Prepared
    from isoloss.config.tasks import Size as Size
    from isoloss.config.tasks import SpamLang as SpamLang
    from isoloss.config.tasks import Text as Text
    from isoloss.data.card import prepared as prepared
    from isoloss.outcome import Curve as Curve
    from isoloss.outcome import Outcome as Outcome
    from isoloss.outcome import Verdict as Verdict
    from isoloss.study import Study as Study
    from isoloss.study import Trial as Trial

__version__ = "0.1.0"

_HOME = {
    "isoloss.config.axes": ("Choice", "Log", "Span"),
    "isoloss.config.budgets": ("Bytes", "Coverage", "Flops", "Passes", "Steps", "Tokens"),
    "isoloss.config.corpus": ("Corpus", "Files", "Hub", "Ladder", "Tokenizer", "Where"),
    "isoloss.config.heads": (
        *("Adaptive", "BackwardRank", "DummyClasses", "Entmax", "Experts", "Linear", "LowRank", "Mixture", "Monotone"),
        *("ProjectedUpdate", "Sigsoftmax", "Sparsemax", "Spherical", "Wide"),
    ),
    "isoloss.config.parts": ("AdamW", "Decoder", "Evaluation", "Probes", "Stop", "WarmupStableDecay"),
    "isoloss.config.search": ("Boundary", "Grid", "Optuna", "Random"),
    "isoloss.config.tasks": ("Prepared", "Size", "SpamLang", "Text"),
    "isoloss.data.card": ("prepared",),
    "isoloss.outcome": ("Curve", "Outcome", "Verdict"),
    "isoloss.study": ("Study", "Trial"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    # Names load on first use, so that `import isoloss` and `isoloss --help` stay instant.
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'isoloss' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
