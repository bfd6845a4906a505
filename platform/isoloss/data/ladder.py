"""Tokenizers: a ladder of byte-level BPEs out of one training, or an existing one that is fit to measure with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as BPE
from tokenizers import decoders, models, pre_tokenizers, trainers

from isoloss.config.corpus import Ladder, Tokenizer
from isoloss.data.card import DataError
from isoloss.data.encoder import Encoder, EncodingError

SEPARATOR = "<|endoftext|>"
"""Of a ladder's tokenizers; its id is 0."""

CHECKED_BYTES = 1_000_000
PROBE = "It's  2025:\n\tprobes über “quoted” words, 3.14 €\n"


def train_ladder(
    ladder: Ladder, texts: Callable[[], Iterable[str]], say: Callable[[str], None] = lambda text: None
) -> dict[int, str]:
    """Return the tokenizer.json of each vocabulary size: one training at the largest, cut for the others.

    Each call of ``texts`` gives the same texts anew; they are streamed. Where a cut differs from a training at its own
    size on the first megabyte, that size is trained by itself on all texts, and ``say`` is told. Raises DataError when
    the texts do not support the largest size.
    """
    *smaller, largest = ladder.vocab_sizes
    whole = _train(largest, texts())
    supported = BPE.from_str(whole).get_vocab_size()
    if supported < largest:
        raise DataError(
            f"vocab_sizes: the training text supports at most {supported:,} tokens, not {largest:,}, since beyond them "
            f"no pair of tokens occurs twice; ask for smaller vocabularies, or for more text (sample_bytes is "
            f"{ladder.sample_bytes:,})"
        )
    sample = list(_first(texts(), CHECKED_BYTES)) if smaller else []
    whole_of_sample = _train(largest, sample)
    tokenizers = {}
    for vocab_size in smaller:
        if _cut(whole_of_sample, vocab_size) == _train(vocab_size, sample):
            tokenizers[vocab_size] = _cut(whole, vocab_size)
        else:
            say(f"the tokenizer of {vocab_size:,} tokens is no cut of the one of {largest:,}: training it by itself")
            tokenizers[vocab_size] = _train(vocab_size, texts())
    return {**tokenizers, largest: whole}


def load_tokenizer(config: Tokenizer) -> tuple[int, str]:
    """Return the vocabulary size, added tokens included, and the tokenizer.json of an existing byte-level BPE.

    What encoding must not do, truncating, padding and adding tokens, is switched off. Raises DataError when the file
    cannot be read or its tokens do not stand for the bytes of a text: another model, a normalizer, holes in the ids.
    """
    try:
        tokenizer = BPE.from_str(Path(config.file).expanduser().read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises no narrower one
        raise DataError(f"the tokenizer {config.file} cannot be read as a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None
    text = tokenizer.to_str()
    try:
        _refuse_lossy(json.loads(text))
        encoder = Encoder(text, config.separator)
        encoder.encode([PROBE])
    except EncodingError as error:
        raise DataError(f"the tokenizer {config.file} cannot be used: of {PROBE!r}, {error}") from None
    except DataError as error:
        raise DataError(f"the tokenizer {config.file} cannot be used: {error}") from None
    return encoder.vocab_size, text


def _train(vocab_size: int, texts: Iterable[str]) -> str:
    tokenizer = BPE(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    return tokenizer.to_str()


def _cut(tokenizer_json: str, vocab_size: int) -> str:
    """Return a trained tokenizer as it was when it had ``vocab_size`` tokens: each merge made the next id."""
    parts = json.loads(tokenizer_json)
    model = parts["model"]
    model["vocab"] = {token: id for token, id in model["vocab"].items() if id < vocab_size}
    model["merges"] = model["merges"][: vocab_size - 257]
    return BPE.from_str(json.dumps(parts)).to_str()


def _first(texts: Iterable[str], size: int) -> Iterator[str]:
    """Yield the first texts, until they hold ``size`` bytes."""
    for text in texts:
        yield text
        size -= len(text.encode())
        if size <= 0:
            return


def _refuse_lossy(parts: dict[str, Any]) -> None:
    """Raise DataError where a tokenizer.json says that its tokens are not the bytes of a text."""
    model, normalizer = parts["model"], parts["normalizer"]
    steps = list(_steps(parts["pre_tokenizer"]))
    byte_levels = [step for step in steps if step["type"] == "ByteLevel"]
    if model["type"] != "BPE":
        raise DataError(f"its model is {model['type']}; only byte-level BPE is supported")
    if model["byte_fallback"]:
        raise DataError(
            "it is a BPE of characters with byte fallback, as SentencePiece's; only byte-level BPE is supported"
        )
    if model["dropout"]:
        raise DataError(f"it drops merges at random (dropout {model['dropout']}); set dropout to null")
    if normalizer is not None:
        raise DataError(f"its normalizer, {normalizer['type']}, changes bytes of a text; only null is supported")
    if not byte_levels:
        raise DataError(
            "its pre-tokenizer has no ByteLevel, so its tokens are characters; only byte-level BPE is supported"
        )
    if any(step["add_prefix_space"] for step in byte_levels):
        raise DataError("its ByteLevel pre-tokenizer adds a space before a text; set add_prefix_space to false")


def _steps(pre_tokenizer: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if pre_tokenizer is None:
        return
    if pre_tokenizer["type"] != "Sequence":
        yield pre_tokenizer
        return
    for step in pre_tokenizer["pretokenizers"]:
        yield from _steps(step)
