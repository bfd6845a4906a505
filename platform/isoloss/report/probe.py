"""What was measured of a public model as one table in a terminal, beside what the paper measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from isoloss.probe.frequency import GROUPS

PAPER = {"suppressed": "0.95 to 0.99", "cosine": "0.1 to 0.2"}
"""Godey & Artzi 2026 (arXiv 2603.10145) on GPT-2, Pythia, Llama-3 and Qwen-3-Base, 10,000 documents of FineWeb."""

ABOUT_PAPER = (
    "The paper's column is not measured here: Godey & Artzi 2026 (arXiv 2603.10145) report it of GPT-2, Pythia, "
    "Llama-3 and Qwen-3-Base on 10,000 documents of FineWeb."
)

ROWS = {
    "Gradient survival": {
        "suppressed": "suppressed, |lost| / |gradient|",
        "random_suppressed": "… by a random subspace of W's rank",
        "cosine": "cosine of kept and whole gradient",
        "gain": "gain, kept energy over a random subspace's",
        "token_suppressed_mean": "suppressed by token: mean",
        "token_suppressed_q10": "… 10 %",
        "token_suppressed_q50": "… median",
        "token_suppressed_q90": "… 90 %",
    },
    "Loss": {
        "loss": "nats per token",
        "bits_per_byte": "bits per byte",
        "mean_log_z": "mean log Z",
    },
    "Output embedding W": {
        "weight_rank": "rank",
        "weight_effective_rank": "effective rank",
        "weight_condition": "condition",
        "weight_top_share": "share of the largest singular value",
    },
    "Hidden states": {
        "hidden_rank": "rank",
        "hidden_effective_rank": "effective rank",
        "hidden_condition": "condition",
        "hidden_top_share": "share of the largest singular value",
        "anisotropy": "anisotropy, mean cosine of two tokens",
        "log_probability_rank": "rank of the log-probabilities of {rank_tokens:,.0f} tokens",
    },
}


def facts_of(params: Mapping[str, Any], figures: Mapping[str, float]) -> dict[str, Any]:
    """Return params and figures as JSON values, null for what could not be measured, and the paper's figures."""
    finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
    return {**params, "figures": finite, "paper": {**PAPER, "source": ABOUT_PAPER}}


def probe_text(params: Mapping[str, Any], figures: Mapping[str, float]) -> Group:
    """Return the params and figures of a model for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("here", justify="right")
    table.add_column("the paper", justify="right")
    for title, rows in ROWS.items():
        table.add_row(Text(title, style="bold"))
        for name, words in rows.items():
            table.add_row(f"  {words.format(**figures)}", number(figures[name]), PAPER.get(name, ""))
    return Group(Text(_about(params)), Text(), table, Text(), _by_frequency(figures), Text(), Text(ABOUT_PAPER, "dim"))


def number(value: float) -> str:
    """Return four digits; whole numbers in full, and a dash for what could not be measured."""
    if not math.isfinite(value):
        return "—"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:#.4g}"


def _about(params: Mapping[str, Any]) -> str:
    padded = params["vocab_size"] - params["tokenizer_size"]
    rows = f", of which {padded:,} are no token's" if padded > 0 else ""
    revision = f" at {params['revision'][:8]}" if params["revision"] else ""
    kind = f"{'tied' if params['tied'] else 'untied'}{', with bias' if params['bias'] else ''}"
    return (
        f"{params['model']}{revision}, {params['dtype']} on {params['device']}\n"
        f"V {params['vocab_size']:,}{rows}; width {params['width']:,}; {kind}\n"
        f"{params['tokens']:,} tokens scored of {params['documents']:,} documents, in windows of {params['length']:,}"
    )


def _by_frequency(figures: Mapping[str, float]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = {"tokens": "tokens", "suppressed": "suppressed", "cosine": "cosine", "gain": "gain", "loss": "loss"}
    table.add_column("thirds of tokens by frequency")
    for name in columns.values():
        table.add_column(name, justify="right")
    for group in GROUPS:
        if f"{group}/tokens" in figures:
            table.add_row(f"  {group}", *(number(figures[f"{group}/{name}"]) for name in columns))
    return table
