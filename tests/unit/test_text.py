"""Text: its sequences and held-out documents against the documents themselves, and training on them."""

# B sequences, T positions, N tokens, U held-out documents

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from small_corpus import VOCAB_SIZES, prepare_small, texts
from tokenizers import Tokenizer

from isoloss import AdamW, Decoder, Evaluation, Linear, Prepared, Steps, Text, tasks
from isoloss.data.card import DataError
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED
from isoloss.train.loop import Training, train
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)
T = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def data(folder: Path) -> Prepared:
    return prepare_small(folder)


def trial(data: Prepared, vocab_size: int = 400, **changes: Any) -> Trial:
    parts = {
        "task": Text(data=data, vocab_size=vocab_size, sequence_length=T),
        "model": Decoder(width=16, depth=1, attention_heads=2),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-2),
        "budget": Steps(12, batch_size=4),
        "evaluation": Evaluation(sequences=5, points=6),
    }
    return Trial(**{**parts, **changes})


def tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "small" / "tokenizers" / f"{vocab_size}.json"))


def held_out_texts() -> list[str]:
    """The documents with the smallest hashes, until they hold 4,000 bytes: what the corpus declares."""
    held, size = [], 0
    for text in sorted(texts(), key=lambda text: hashlib.blake2b(text.encode(), digest_size=16).digest()):
        if size >= 4000:
            break
        held.append(text)
        size += len(text.encode())
    return held


def stream(folder: Path, trial: Trial, tokens: int) -> list[int]:
    """The first tokens that a trial trains on, from its batches."""
    loaded = tasks.load(trial, folder)
    batches = [loaded.train(step) for step in range(-(-tokens // (4 * T)))]
    inputs_N = torch.cat([batch.inputs_BT.flatten() for batch in batches])
    targets_N = torch.cat([batch.targets_BT.flatten() for batch in batches])
    assert torch.equal(inputs_N[1:], targets_N[:-1]), "each token is predicted once, and read before it is predicted on"
    return inputs_N[:tokens].tolist()


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_a_pass_holds_every_training_document_once_and_whole(folder: Path, data: Prepared, vocab_size: int) -> None:
    found = tokenizer(folder, vocab_size)
    one_pass = next(size.tokens for size in data.sizes if size.vocab_size == vocab_size)
    tokens = stream(folder, trial(data, vocab_size), 2 * one_pass)
    for first in (0, one_pass):
        part = tokens[first : first + one_pass]
        assert part[-1] == 0, "a pass ends with a document's separator"
        ends = [i for i, token in enumerate(part) if token == 0]
        documents = [found.decode(part[a + 1 : b]) for a, b in zip([-1, *ends[:-1]], ends, strict=True)]
        assert sorted(documents) == sorted(set(texts()) - set(held_out_texts()))
    assert tokens[:one_pass] != tokens[one_pass:], "each pass has an order of its own"


def test_every_vocabulary_reads_the_same_text_in_the_same_order(folder: Path, data: Prepared) -> None:
    small, large = (
        tokenizer(folder, size).decode(stream(folder, trial(data, size), 700), skip_special_tokens=False)
        for size in VOCAB_SIZES
    )
    assert large.startswith(small[:-8])  # the last token may end within a character
    assert len(large) > len(small) > 1000


def test_held_out_documents_are_scored_whole_and_once(folder: Path, data: Prepared) -> None:
    held = tasks.load(trial(data), folder).held_out()
    scored_BT = held.batch.targets_BT != UNSCORED
    found = tokenizer(folder, 400)
    for unit, text in enumerate(held_out_texts()[:5]):
        tokens = held.batch.targets_BT[scored_BT & (held.unit_BT == unit)].tolist()
        assert tokens[-1] == 0
        assert found.decode(tokens[:-1]) == text
        assert held.bytes_U is not None
        assert held.bytes_U[unit] == len(text.encode())
    inputs_N, targets_N = held.batch.inputs_BT[scored_BT], held.batch.targets_BT[scored_BT]
    assert int(inputs_N[0]) == 0, "the first document follows a separator, too"
    assert torch.equal(inputs_N[1:], targets_N[:-1])


def test_unigram_losses_are_those_of_the_corpus(folder: Path, data: Prepared) -> None:
    held = tasks.load(trial(data), folder).held_out()
    counts = np.zeros(400)
    for encoding in tokenizer(folder, 400).encode_batch(texts()):
        np.add.at(counts, [*encoding.ids, 0], 1)
    for unit, text in enumerate(held_out_texts()[:5]):
        ids = [*tokenizer(folder, 400).encode(text).ids, 0]
        expected = -sum(math.log(counts[id] / counts.sum()) for id in ids)
        assert held.unigram_nats_U is not None
        assert float(held.unigram_nats_U[unit]) == pytest.approx(expected, rel=1e-12)


def test_training_measures_bits_per_byte_and_what_they_come_from(folder: Path, data: Prepared) -> None:
    result = train(trial(data), Settings(data=str(folder)))
    held = held_out_texts()[:5]
    tokens = sum(len(encoding.ids) + 1 for encoding in tokenizer(folder, 400).encode_batch(held))
    bytes_ = sum(len(text.encode()) for text in held)
    for nats, bits in zip(result.series["nats_per_token"], result.curve.loss, strict=True):
        assert nats is not None
        assert bits == pytest.approx(nats * tokens / bytes_ / math.log(2), rel=1e-12)
    assert result.series["nats_per_token"][0] == pytest.approx(math.log(400), rel=1e-2)
    assert result.curve.loss[-1] < result.curve.loss[0]


def test_an_interrupted_training_goes_on_to_the_same_bytes(folder: Path, data: Prepared) -> None:
    settings = Settings(data=str(folder), checkpoint_seconds=0)
    saved: list[bytes] = []
    whole = train(trial(data), settings, save=saved.append)
    resumed = train(trial(data), settings, checkpoint=saved[5])
    assert resumed.machine["resumed_at"] == 6
    assert dataclasses.replace(resumed, machine={}).to_bytes() == dataclasses.replace(whole, machine={}).to_bytes()


def test_a_worker_reads_its_own_part(folder: Path, data: Prepared) -> None:
    loaded = tasks.load(trial(data), folder)
    asked = []
    inner = loaded.order.tokens  # type: ignore[attr-defined]
    loaded.order.tokens = lambda start, count: asked.append((start, count)) or inner(start, count)  # type: ignore[attr-defined]
    try:
        loaded.train(3, rank=1, count=2)
    finally:
        del loaded.order.tokens  # type: ignore[attr-defined]
    assert asked == [((3 * 4 + 2) * T, 2 * T + 1)]


def test_a_corpus_that_is_not_what_the_study_says_is_refused(folder: Path, data: Prepared) -> None:
    for changed, said in (
        ({"digest": None}, "named without its digest"),
        ({"digest": "0" * 16}, "digest of the corpus 'small' is"),
        ({"bytes": 1}, "bytes of the corpus 'small' is"),
    ):
        asked = trial(data.model_copy(update=changed))
        with pytest.raises(DataError, match=said):
            Training(asked, Settings(data=str(folder)), Workers())
    with pytest.raises(ValidationError, match=r"at most the .* documents that 'small' holds out, not 5000"):
        trial(data, evaluation=Evaluation(sequences=5000))
