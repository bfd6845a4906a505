"""A prepared corpus of generated text, small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from isoloss import Corpus, Files, Ladder, Prepared
from isoloss.data.prepare import prepare

VOCAB_SIZES = (300, 400)


def texts(count: int = 120, seed: int = 0) -> list[str]:
    """Return documents of words whose frequencies fall as in natural text, some of them not ASCII."""
    generator = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyzäöüжшы")
    words = ["".join(generator.choice(letters, generator.integers(2, 9))) for _ in range(200)]
    shares = 1 / np.arange(1, 201)
    return [
        " ".join(generator.choice(words, generator.integers(5, 80), p=shares / shares.sum())) + "."
        for _ in range(count)
    ]


def prepare_small(folder: Path, name: str = "small", documents: list[str] | None = None) -> Prepared:
    """Prepare generated text as ``<folder>/<name>`` and return its card."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(documents or texts())]
    (folder / "texts.jsonl").write_text("\n".join(rows))
    corpus = Corpus(
        name=name, source=Files(str(folder / "*.jsonl")), tokenizer=Ladder(*VOCAB_SIZES), held_out_bytes=4000
    )
    return prepare(corpus, folder / name)
