"""The ladder against a BPE written out by hand and against separate trainings; which tokenizers are refused."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import (
    ByteLevelBPETokenizer,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from isoloss.config.corpus import Ladder
from isoloss.config.corpus import Tokenizer as Existing
from isoloss.data import ladder
from isoloss.data.card import DataError
from isoloss.data.encoder import Encoder
from isoloss.data.ladder import SEPARATOR, load_tokenizer, train_ladder

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def words(seed: int, count: int = 400) -> list[str]:
    """Return texts of made-up words, some common and some rare, in Latin, Greek and Cyrillic letters."""
    draw = random.Random(seed)
    vocabulary = [
        "".join(draw.choices(draw.choice(["abcde", "ταυ", "ждшо"]), k=draw.randint(1, 6))) for _ in range(300)
    ]
    return [" ".join(vocabulary[int(300 * draw.random() ** 3)] for _ in range(40)) for _ in range(count)]


def parts(text: str) -> tuple[dict[str, int], list[list[str]]]:
    model = json.loads(text)["model"]
    return model["vocab"], model["merges"]


# --- training


def bpe_by_hand(texts: list[str], merges: int) -> list[list[str]]:
    """Return the merges of a BPE over words of Latin letters: the most frequent pair, of equals the lowest ids."""
    counts = Counter(("Ġ" if place else "") + word for text in texts for place, word in enumerate(text.split(" ")))
    pieces = {word: list(word) for word in counts}
    ids = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 1)}
    made: list[list[str]] = []
    while len(made) < merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in counts.items():
            for pair in zip(pieces[word], pieces[word][1:], strict=False):
                pairs[pair] += count
        left, right = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        ids[left + right] = len(ids) + 1
        made.append([left, right])
        for word, letters in pieces.items():
            joined: list[str] = []
            for letter in letters:
                if joined and joined[-1] == left and letter == right:
                    joined[-1] = left + right
                else:
                    joined.append(letter)
            pieces[word] = joined
    return made


def test_merges_are_those_of_a_bpe_written_out() -> None:
    draw = random.Random(1)
    vocabulary = ["".join(draw.choices("bcdf", k=draw.randint(2, 5))) for _ in range(60)]
    texts = [" ".join(draw.choices(vocabulary, k=30)) for _ in range(20)]
    vocab, merges = parts(train_ladder(Ladder(257 + 40), lambda: texts)[297])
    assert merges == bpe_by_hand(texts, 40)
    assert vocab == {
        SEPARATOR: 0,
        **{letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 1)},
        **{left + right: place for place, (left, right) in enumerate(merges, 257)},
    }


def test_every_size_is_what_a_training_at_that_size_gives() -> None:
    texts, sizes = words(0), (257, 300, 512, 700)
    tokenizers = train_ladder(Ladder(*sizes), lambda: iter(texts), say=pytest.fail)
    assert list(tokenizers) == list(sizes)
    for size, text in tokenizers.items():
        alone = ByteLevelBPETokenizer()
        alone.train_from_iterator(texts, size, min_frequency=2, special_tokens=[SEPARATOR], show_progress=False)
        assert parts(text) == parts(alone._tokenizer.to_str())
        encoder = Encoder(text, SEPARATOR)
        assert (encoder.vocab_size, encoder.separator) == (size, 0)


def test_a_size_that_is_no_cut_is_trained_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, said = words(0), []
    right, cut = train_ladder(Ladder(300, 400, 500), lambda: texts), ladder._cut
    monkeypatch.setattr(ladder, "_cut", lambda text, size: cut(text, size - (size == 400)))
    assert train_ladder(Ladder(300, 400, 500), lambda: texts, said.append) == right
    assert len(said) == 1
    assert "400" in said[0]


def test_only_a_start_of_the_texts_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "CHECKED_BYTES", 10_000)
    texts, read = ["ab " * 200] * 50, []  # 600 bytes each

    def again() -> Iterator[str]:
        read.append(0)
        for text in texts:
            read[-1] += 1
            yield text

    train_ladder(Ladder(257, 258), again)
    assert read == [50, 17]  # 16 of them hold less than 10,000 bytes


def test_the_largest_supported_size_is_named() -> None:
    # "ab" and " ab": a+b occurs twice, then " "+"ab" once, so there is one merge.
    with pytest.raises(DataError, match=r"vocab_sizes: .* at most 258 tokens, not 300"):
        train_ladder(Ladder(257, 300), lambda: ["ab ab"])


def test_a_failing_text_stops_the_training() -> None:
    def failing() -> Iterator[str]:
        yield "ab ab"
        raise DataError("row 7")

    with pytest.raises(DataError, match="row 7"):
        train_ladder(Ladder(257), failing)


def test_threads_and_repeats_change_nothing() -> None:
    code = (
        "import json, sys; from isoloss.config.corpus import Ladder; from isoloss.data.ladder import train_ladder;"
        "texts = json.load(sys.stdin); print(json.dumps(train_ladder(Ladder(300, 600), lambda: texts)))"
    )
    texts = words(0)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"},
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in "12"
    ]
    here = {str(size): text for size, text in train_ladder(Ladder(300, 600), lambda: texts).items()}
    assert [json.loads(output) for output in outputs] == [here, here]


# --- existing tokenizers


def existing(steps: pre_tokenizers.PreTokenizer, special: tuple[str, ...] = (SEPARATOR,), **model: object) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = steps
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(words(2, 100), trainer)
    return tokenizer


def byte_level(**options: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def gpt2() -> Tokenizer:
    tokenizer = existing(byte_level())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def smollm2() -> Tokenizer:
    steps = [pre_tokenizers.Digits(individual_digits=True), byte_level()]
    return existing(pre_tokenizers.Sequence(steps), (SEPARATOR, "<|im_start|>", "<|im_end|>"), unk_token=SEPARATOR)


def llama3() -> Tokenizer:
    steps = [pre_tokenizers.Split(Regex(LLAMA), "isolated"), byte_level(use_regex=False)]
    tokenizer = existing(pre_tokenizers.Sequence(steps), ())
    tokenizer.model.ignore_merges = True
    tokenizer.add_special_tokens(["<|begin_of_text|>", SEPARATOR])
    tokenizer.add_tokens(["ждшо  "])
    begin = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[begin])
    return tokenizer


def saved(tokenizer: Tokenizer, folder: Path) -> Existing:
    tokenizer.save(str(folder / "tokenizer.json"))
    return Existing(file=str(folder / "tokenizer.json"))


@pytest.mark.parametrize(("make", "size"), [(gpt2, 400), (smollm2, 400), (llama3, 403)])
def test_byte_level_tokenizers_are_loaded(make: type, size: int, tmp_path: Path) -> None:
    tokenizer = make()
    vocab_size, text = load_tokenizer(saved(tokenizer, tmp_path))
    assert vocab_size == size
    encoder = Encoder(text, SEPARATOR)
    sample = "ab  ждшо  dce, 2025\r\n\n\tτα<|im_end|><|endoftext|>漢字 👩‍🚀"
    tokens_N, lengths_K = encoder.encode([sample, ""])
    assert lengths_K.tolist() == [len(tokens_N) - 1, 1]
    assert Tokenizer.from_str(text).model.ignore_merges == tokenizer.model.ignore_merges
    assert encoder.bytes_V[tokens_N].sum() == len(sample.encode())
    if make is llama3:
        assert tokenizer.token_to_id("ждшо  ") in tokens_N
        assert encoder.bytes_V[tokenizer.token_to_id("ждшо  ")] == 10


def test_what_encoding_must_not_do_is_switched_off(tmp_path: Path) -> None:
    plain, noisy = gpt2(), gpt2()
    noisy.enable_truncation(8)
    noisy.enable_padding(length=64, pad_token=SEPARATOR)
    noisy.post_processor = processors.BertProcessing((SEPARATOR, 0), (SEPARATOR, 0))
    assert load_tokenizer(saved(noisy, tmp_path)) == load_tokenizer(saved(plain, tmp_path))


def with_hole() -> Tokenizer:
    text = json.loads(gpt2().to_str())
    text["model"]["vocab"]["jump"] = 500
    return Tokenizer.from_str(json.dumps(text))


def normalized() -> Tokenizer:
    tokenizer = gpt2()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def word_piece() -> Tokenizer:
    return Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))


def sentence_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "▁a": 1}, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def other_letters() -> Tokenizer:
    text = json.loads(gpt2().to_str())
    text["model"]["vocab"]["▁a"] = 400
    return Tokenizer.from_str(json.dumps(text))


def without_whitespace() -> Tokenizer:
    return existing(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), byte_level()]))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (word_piece, "its model is WordPiece; only byte-level BPE"),
        (sentence_piece, "byte fallback"),
        (lambda: existing(pre_tokenizers.Whitespace()), "no ByteLevel"),
        (lambda: Tokenizer(models.BPE()), "no ByteLevel"),
        (lambda: existing(byte_level(add_prefix_space=True)), "add_prefix_space"),
        (lambda: existing(byte_level(), dropout=0.1), r"dropout 0\.1"),
        (normalized, "normalizer, NFC"),
        (with_hole, "ids 0 to 400, and 400 is none"),
        (other_letters, "token 400, '▁a'"),
        (lambda: existing(byte_level(), ()), r"special tokens \(none, .*not '<\|endoftext\|>'"),
        (lambda: existing(byte_level(), ("</s>", "<s>")), r"special tokens \('</s>', '<s>'\), not '<\|endoftext\|>'"),
        (without_whitespace, "drops, adds or changes bytes"),
    ],
)
def test_tokenizers_whose_tokens_are_not_bytes_are_refused(make: type, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"tokenizer\.json cannot be used: .*{reason}"):
        load_tokenizer(saved(make(), tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b'{"model": {"type": "Other"}}'])
def test_what_is_no_tokenizer_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read as a tokenizer\.json: "):
        load_tokenizer(Existing(file=str(file)))
