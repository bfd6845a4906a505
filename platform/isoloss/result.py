"""A result: one finished trial's curve and what it cost, as one Arrow file, so that it exists whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from isoloss.outcome import Curve

SERIES = ("train_loss", "gradient_norm", "learning_rate")
"""What is measured beside the held-out loss, between one evaluation and the next: mean training loss (nats per
scored token), largest gradient norm before clipping, learning rate of the last update."""

TEXT_SERIES = ("nats_per_token", "nats_per_token_error", "unigram_loss", "unigram_loss_error")
"""Of a text, whose loss is in bits per byte: the same in nats per token; that less the loss of the corpus's unigram
frequencies on the same tokens (Tao et al. 2024); and the standard error of each."""

SURVIVAL_SERIES = (
    *("suppressed", "cosine", "gain", "survival_rank", "backprop_cosine", "suppressed_mean"),
    *("suppressed_p10", "suppressed_p50", "suppressed_p90"),
    *("suppressed_rare", "suppressed_middle", "suppressed_frequent"),
)
"""Of the logits' gradient of the probed tokens together: the share of its norm that the head suppresses, the cosine
between what survives and all of it, the surviving energy over what a random subspace of that rank would keep, the
rank, and the cosine with what a step on the hidden states alone does to the logits. Of single tokens: the suppressed
share's mean and quantiles, and of a text what is suppressed in its rarest, middle and most frequent third."""

SPECTRUM_SERIES = (
    *("head_effective_rank", "head_entropy", "head_condition", "head_top1"),
    *("hidden_effective_rank", "hidden_entropy", "hidden_condition", "hidden_top1"),
    *("anisotropy", "log_probability_rank", "log_probability_effective_rank"),
)
"""Of the head's last matrix, of the probed hidden states and of their log-probabilities, by ``probe.spectrum``."""

UPDATE_SERIES = ("ideal_rank", "ideal_tail", "update_rank", "update_cosine")
"""D_u of the probed tokens, the part of P - Ñ beyond rank 2D (Prop. 2.6), and of the logits' first-order change under
gradient descent its rank and its cosine with the change that lowers the loss fastest (Godey & Artzi 2026)."""

STABILITY_SERIES = (
    *("attention_logit", "log_z"),
    *(f"gradient_rms_{group}" for group in ("embedding", "attention", "mlp", "norm", "head")),
    *(f"update_rms_{group}" for group in ("embedding", "attention", "mlp", "norm", "head")),
)
"""The largest attention logit and the mean log Z of the probed tokens; the root mean square, by group of parameters, of
the last update and of its gradient before clipping (Wortsman et al. 2023)."""


@dataclass(frozen=True)
class Result:
    """What one trial left behind.

    ``series`` holds one value an evaluation for each name of ``SERIES``, of a text of ``TEXT_SERIES``, and of what the
    trial's probes ask for, None where there is none (before the first update, or for this head). ``trial`` is the
    trial's canonical form. ``machine`` is all that may differ between two runs of the same trial: device, dtype,
    workers, versions, seconds; the rest is the same to the byte.
    """

    key: str
    trial: dict[str, Any]
    curve: Curve
    series: dict[str, tuple[float | None, ...]]
    machine: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the Arrow file: the curve as columns, the rest as schema metadata."""
        curve = self.curve
        columns = {
            "step": pa.array(curve.step, pa.int64()),
            "loss": pa.array(curve.loss, pa.float64()),
            "standard_error": pa.array(curve.standard_error, pa.float64()),
            **{name: pa.array(values, pa.float64()) for name, values in self.series.items()},
        }
        about = {
            "key": self.key,
            "trial": self.trial,
            "floor": curve.floor,
            "ended": curve.ended,
            "machine": self.machine,
        }
        table = pa.table(columns).replace_schema_metadata({"isoloss": json.dumps(about, allow_nan=False)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Result:
        """Read what ``to_bytes`` wrote."""
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        about = json.loads(table.schema.metadata[b"isoloss"])
        columns = {name: tuple(table.column(name).to_pylist()) for name in table.column_names}
        curve = Curve(columns["step"], columns["loss"], columns["standard_error"], about["floor"], about["ended"])
        series = {name: values for name, values in columns.items() if name not in ("step", "loss", "standard_error")}
        return cls(about["key"], about["trial"], curve, series, about["machine"])
