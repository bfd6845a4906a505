"""A corpus, as a declaration: which documents there are, which are kept, and the vocabularies they are cut into."""

from __future__ import annotations

from typing import Annotated, Literal, Union

from pydantic import Field, model_validator

from isoloss.config.base import Listed, Name, Part, Positive

Share = Annotated[float, Field(ge=0, le=1)]


class Files(Part):
    """Files of documents, by a pattern: a path with ``*``, or a URI such as ``s3://bucket/fineweb/*.parquet``.

    ``.parquet`` and ``.jsonl`` (also ``.jsonl.gz``) files hold a document a row, in the columns ``text`` and ``id``;
    with an ``id`` of None, or in ``.txt`` files, a document is known by its file and row. A ``.txt`` file is cut into
    documents at ``separator``.
    """

    kind: Literal["files"] = "files"
    pattern: Annotated[str, Field(min_length=1)]
    text: str = "text"
    id: str | None = "id"
    separator: Annotated[str, Field(min_length=1)] = "\n\n"

    def __init__(self, pattern: str | None = None, /, **fields: object) -> None:
        super().__init__(**({"pattern": pattern} if pattern is not None else {}), **fields)


class Hub(Part):
    """The first ``documents`` of a data set on the Hugging Face hub, streamed through ``datasets`` (extra ``hub``).

    ``revision`` names a commit, a tag or a branch; only a commit stays what it is.
    """

    kind: Literal["hub"] = "hub"
    dataset: str
    config: str
    revision: str = "main"
    documents: Positive

    @classmethod
    def fineweb(cls, config: str = "sample-10BT", *, documents: int, revision: str = "main") -> Hub:
        """FineWeb (Penedo et al. 2024): ``sample-10BT``, ``sample-100BT``, ``sample-350BT`` or one dump."""
        return cls(dataset="HuggingFaceFW/fineweb", config=config, documents=documents, revision=revision)

    @classmethod
    def fineweb_edu(cls, config: str = "sample-10BT", *, documents: int, revision: str = "main") -> Hub:
        """FineWeb-Edu (Penedo et al. 2024): FineWeb's educational pages, with their ``score`` and ``int_score``."""
        return cls(dataset="HuggingFaceFW/fineweb-edu", config=config, documents=documents, revision=revision)


class Where(Part):
    """Which documents are kept, by the columns of FineWeb's schema and by length; None keeps all.

    ``language_score``, ``score`` and ``int_score`` are the least accepted; ``dumps`` the accepted crawls;
    ``least_bytes`` and ``most_bytes`` bound the UTF-8 length of a text. A column that is asked for must exist.
    """

    language: str | None = None
    language_score: Share | None = None
    score: float | None = None
    int_score: int | None = None
    dumps: Annotated[tuple[str, ...], Listed] = ()
    least_bytes: Positive = 1
    most_bytes: Positive | None = None


class Ladder(Part):
    """Byte-level BPE tokenizers of several sizes, one trained at the largest and cut for the others.

    A vocabulary size counts the 256 bytes, the separator and the merges: V is exact. They are trained on
    ``sample_bytes`` of the training documents.
    """

    kind: Literal["ladder"] = "ladder"
    vocab_sizes: Annotated[tuple[Annotated[int, Field(ge=257)], ...], Listed]
    sample_bytes: Positive = 100_000_000

    def __init__(self, *vocab_sizes: int, **fields: object) -> None:
        super().__init__(**({"vocab_sizes": vocab_sizes} if vocab_sizes else {}), **fields)

    @model_validator(mode="after")
    def _ascends(self) -> Ladder:
        if not self.vocab_sizes or list(self.vocab_sizes) != sorted(set(self.vocab_sizes)):
            raise ValueError(f"vocab_sizes must be different and ascend, not {self.vocab_sizes}")
        return self


class Tokenizer(Part):
    """An existing byte-level BPE tokenizer, a ``tokenizer.json`` such as SmolLM2's or GPT-2's, at its own V.

    ``separator`` is the token that follows every document.
    """

    kind: Literal["tokenizer"] = "tokenizer"
    file: str
    separator: str = "<|endoftext|>"


class Corpus(Part):
    """What ``isoloss data prepare`` makes token shards of, as a pure function of this value and the documents.

    A document whose id or text has occurred before is dropped. Of the others, those with the smallest hashes are held
    out, until they hold ``held_out_bytes`` of text; the rest is for training, or of it the first ``train_bytes``.
    """

    name: Name
    source: Annotated[Union[Files, Hub], Field(discriminator="kind")]
    tokenizer: Annotated[Union[Ladder, Tokenizer], Field(discriminator="kind")]
    where: Where = Where()
    held_out_bytes: Positive = 1_000_000
    train_bytes: Positive | None = None
    kind: Literal["corpus"] = "corpus"
