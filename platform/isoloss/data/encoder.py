"""From texts to tokens, such that the bytes of each document's tokens sum to the bytes of its text."""

# N tokens of all documents, V vocabulary, K documents

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from isoloss.data.card import DataError

Ids = NDArray[np.unsignedinteger[Any]]


class EncodingError(DataError):
    """The tokens of a text do not stand for its bytes; ``index`` is the text's place among those given."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class Encoder:
    """A byte-level BPE at its own V, and the separator that follows every document.

    ``tokenizer_json`` is a text as ``train_ladder`` or ``load_tokenizer`` returns it. ``bytes_V`` (int32) holds the
    UTF-8 bytes that each token stands for, special tokens 0; ``dtype`` is the smallest that holds every token;
    ``missing`` are the bytes that have no token.
    Raises DataError where the ids are not 0…V-1, the separator is no special token, or a token is not of bytes.
    """

    def __init__(self, tokenizer_json: str, separator: str) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        # A special token that a text spells out is text; else its bytes would be lost. JSON does not keep this.
        self._tokenizer.encode_special_tokens = True
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.bytes_V = _bytes_of_tokens(self._tokenizer)
        vocabulary = self._tokenizer.get_vocab()
        self.missing = bytes(byte for byte, letter in enumerate(letters_of_bytes()) if letter not in vocabulary)
        self.separator = _id_of_separator(self._tokenizer, separator)
        self.dtype: type[np.uint16] | type[np.uint32] = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32

    def encode(self, texts: list[str]) -> tuple[Ids, NDArray[np.int64]]:
        """Return the tokens of all texts, each followed by the separator, and how many each text has (K, int64).

        The separator counts. Raises EncodingError when the bytes of a text's tokens do not sum to its UTF-8 length.
        """
        # Encoding.ids makes a list; array.fromlist is the cheapest way out of one.
        tokens, lengths_K = array("I"), np.empty(len(texts), np.int64)
        for index, encoding in enumerate(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)):
            tokens.fromlist(encoding.ids)
            tokens.append(self.separator)
            lengths_K[index] = len(encoding) + 1
        tokens_N: Ids = np.array(tokens, self.dtype)
        if texts:
            self._check(texts, tokens_N, lengths_K)
        return tokens_N, lengths_K

    def _check(self, texts: list[str], tokens_N: Ids, lengths_K: NDArray[np.int64]) -> None:
        starts_K = np.cumsum(lengths_K) - lengths_K
        found_K = np.add.reduceat(self.bytes_V[tokens_N], starts_K, dtype=np.int64)
        expected_K = np.array([len(text.encode()) for text in texts])
        wrong = np.flatnonzero(found_K != expected_K)
        if len(wrong):
            index = int(wrong[0])
            raise EncodingError(
                f"the tokens of a text of {expected_K[index]:,} bytes stand for {found_K[index]:,} bytes: the "
                f"tokenizer {self._reason(texts[index])}",
                index,
            )

    def _reason(self, text: str) -> str:
        lacking = sorted(set(text.encode()) & set(self.missing))
        if lacking:
            return f"has no token for the bytes {', '.join(f'0x{byte:02X}' for byte in lacking)}"
        return "drops, adds or changes bytes"


def letters_of_bytes() -> str:
    """Return the letter by which the byte-level alphabet spells each of the 256 bytes (Radford et al. 2019).

    Bytes that Latin-1 prints are themselves; the others are the letters from U+0100 on, in their order.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printed else next(others)) for byte in range(256))


def _bytes_of_tokens(tokenizer: Tokenizer) -> NDArray[np.int32]:
    vocabulary = tokenizer.get_vocab()
    hole = next((place for place, id in enumerate(sorted(vocabulary.values())) if place != id), None)
    if hole is not None:
        raise DataError(
            f"the {len(vocabulary):,} tokens must have the ids 0 to {len(vocabulary) - 1}, and {hole} is none"
        )
    added = tokenizer.get_added_tokens_decoder()
    letters = set(ByteLevel.alphabet())
    bytes_V = np.zeros(len(vocabulary), np.int32)
    for token, id in vocabulary.items():
        if id in added:
            bytes_V[id] = 0 if added[id].special else len(token.encode())
        elif letters.issuperset(token):
            bytes_V[id] = len(token)  # the byte-level alphabet has one letter for each byte
        else:
            raise DataError(
                f"token {id}, {token!r}, is not spelled in the byte-level alphabet, so its bytes are unknown"
            )
    return bytes_V


def _id_of_separator(tokenizer: Tokenizer, separator: str) -> int:
    special = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    if separator not in special:
        accepted = ", ".join(map(repr, special)) or "none, and it needs one"
        raise DataError(f"separator must be one of the tokenizer's special tokens ({accepted}), not {separator!r}")
    return special[separator]
