"""Tokens stand for exactly the bytes of their text, whatever the text."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from isoloss.config.corpus import Ladder
from isoloss.data.encoder import Encoder, EncodingError, letters_of_bytes
from isoloss.data.ladder import SEPARATOR, train_ladder

TEXTS = [
    'The quick brown fox, 1,024 times; it\'s "fine".',
    "Съешь же ещё этих мягких французских булок",
    "敏捷的棕色狐狸跳过了懒狗。いろはにほへと",
    "👩‍🚀🏳️‍🌈 flags 🇳🇿 e\u0301 n\u0303 \u200b\ufeff",
    "nul\x00byte\x00\x00 and \x1b\x7f\x85",
    "line\r\nline\n\n\n\ttab   spaces   \r",
    "",
    " ",
    f"a{SEPARATOR}b {SEPARATOR}{SEPARATOR}",
    "\U0010ffff\ue000\ud7ff",
    "a" * 5000,
]


def random_text(draw: random.Random) -> str:
    blocks = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    return "".join(chr(draw.randrange(*draw.choice(blocks))) for _ in range(draw.randrange(60)))


@pytest.fixture(scope="module")
def trained() -> str:
    return train_ladder(Ladder(450), lambda: TEXTS * 3)[450]


def letters_to_bytes() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes of Latin-1 are themselves, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def test_bytes_are_those_that_the_letters_spell(trained: str) -> None:
    alphabet, encoder = letters_to_bytes(), Encoder(trained, SEPARATOR)
    vocabulary = json.loads(trained)["model"]["vocab"]
    spelled = {id: bytes(map(alphabet.get, token)) for token, id in vocabulary.items() if token != SEPARATOR}
    assert encoder.bytes_V.tolist() == [0, *(len(spelled[id]) for id in range(1, 450))]
    draw = random.Random(3)
    texts = TEXTS + [random_text(draw) for _ in range(200)]
    tokens_N, lengths_K = encoder.encode(texts)
    ends_K = np.cumsum(lengths_K)
    assert ends_K[-1] == len(tokens_N)
    for text, length, end in zip(texts, lengths_K, ends_K, strict=True):
        *tokens, separator = tokens_N[end - length : end].tolist()
        assert separator == encoder.separator == 0
        assert b"".join(spelled[token] for token in tokens) == text.encode()
        assert Tokenizer.from_str(trained).decode(tokens) == text


def test_decoding_single_tokens_counts_other_bytes(trained: str) -> None:
    encoder, tokenizer = Encoder(trained, SEPARATOR), Tokenizer.from_str(trained)
    text = "жш漢"
    tokens_N, _ = encoder.encode([text])
    assert encoder.bytes_V[tokens_N].sum() == 7
    assert sum(len(tokenizer.decode([token]).encode()) for token in tokens_N.tolist()) > 7


def test_no_texts_are_no_tokens(trained: str) -> None:
    tokens_N, lengths_K = Encoder(trained, SEPARATOR).encode([])
    assert (tokens_N.shape, lengths_K.shape) == ((0,), (0,))


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_the_smallest_type_holds_every_token(size: int, dtype: type) -> None:
    letters = sorted(letters_to_bytes())
    fillers = [left + right for left in letters for right in letters if left + right != "nd"]
    tokens = [SEPARATOR, *letters, "nd", *fillers[: size - 259], "end"]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, [("n", "d"), ("e", "nd")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([SEPARATOR])
    encoder = Encoder(tokenizer.to_str(), SEPARATOR)
    tokens_N, _ = encoder.encode(["end"])
    assert encoder.vocab_size == size
    assert encoder.dtype == tokens_N.dtype == dtype
    assert tokens_N.tolist() == [size - 1, 0]


def test_letters_stand_for_bytes_as_in_the_library() -> None:
    library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters, seen = letters_of_bytes(), set()
    for code in (*range(0x800), *range(0x800, 0xD800, 61), *range(0xE000, 0x110000, 997)):
        spelled = "".join(part for part, _ in library.pre_tokenize_str(chr(code)))
        assert spelled == "".join(letters[byte] for byte in chr(code).encode())
        seen.update(chr(code).encode())
    assert set(range(256)) - seen == {0xC0, 0xC1, *range(0xF5, 0x100)}, "bytes that UTF-8 never has"
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())


def test_bytes_without_a_token_are_named() -> None:
    # As SmolLM2's: it never saw some bytes, and its unknown token is the separator.
    tokenizer = Tokenizer(models.BPE(unk_token=SEPARATOR))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[SEPARATOR], show_progress=False)
    tokenizer.train_from_iterator(["fine words é"], trainer)
    encoder = Encoder(tokenizer.to_str(), SEPARATOR)
    with pytest.raises(
        EncodingError, match=r"9 bytes stand for 5 bytes: .* no token for the bytes 0x9F, 0xB0, 0xF0$"
    ) as got:
        encoder.encode(["fine", "words é", "é é🟰"])
    assert got.value.index == 2
