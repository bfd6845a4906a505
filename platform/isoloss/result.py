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


@dataclass(frozen=True)
class Result:
    """What one trial left behind.

    ``series`` holds one value an evaluation for each name of ``SERIES``, and of a text of ``TEXT_SERIES``, None where
    there is none (before the first update). ``trial`` is the trial's canonical form. ``machine`` is all that may
    differ between two runs of the same trial: device, dtype, workers, versions, seconds; the rest is the same to the
    byte.
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
        series = {name: columns[name] for name in (*SERIES, *TEXT_SERIES) if name in columns}
        return cls(about["key"], about["trial"], curve, series, about["machine"])
