"""Tasks, as declarations: what is learned, in which unit its loss is measured, and its floor."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Union

from pydantic import Field, model_validator

from isoloss.config.base import Listed, Name, Part, Positive


class TrainingText(NamedTuple):
    """How large a text is: its bytes of UTF-8, and its tokens in one vocabulary."""

    bytes: int
    tokens: int


class SpamLang(Part):
    """Sequences that repeat one symbol (Godey & Artzi 2026); what remains to be learned is one symbol's identity.

    ``scored="repeats"`` scores positions 2…T, whose floor is 0; ``"all"`` also scores the first, which nothing
    predicts, for a floor of ln(V)/T nats. ``mapping="shuffled"`` asks for a fixed permutation of the symbol instead
    of the symbol itself, so that a tied head gains nothing from copying (Murugan 2026).
    """

    kind: Literal["spamlang"] = "spamlang"
    vocab_size: Annotated[int, Field(ge=2)]
    sequence_length: Annotated[int, Field(ge=2)]
    mapping: Literal["identity", "shuffled"] = "identity"
    scored: Literal["repeats", "all"] = "repeats"

    @property
    def floor(self) -> float:
        """The irreducible loss in nats per scored token."""
        return 0.0 if self.scored == "repeats" else math.log(self.vocab_size) / self.sequence_length

    @property
    def positions(self) -> int:
        """Scored tokens of one sequence."""
        return self.sequence_length - 1 if self.scored == "repeats" else self.sequence_length

    @property
    def input_vocab_size(self) -> int:
        """Rows of the input embedding: V, and one more where a start token precedes the first scored symbol."""
        return self.vocab_size if self.scored == "repeats" else self.vocab_size + 1

    @property
    def draws_per_sequence(self) -> int:
        """Independent draws in one sequence: its repeats are not independent."""
        return 1

    @property
    def unit(self) -> str:
        """The unit of its loss, for labels; ``unit_in_full`` says of what."""
        return "nats"

    @property
    def unit_in_full(self) -> str:
        return "nats per scored token"

    @property
    def floor_known(self) -> bool:
        """Whether the irreducible loss is known, so that a loss above it is an excess."""
        return True

    def training_text(self, budget: str) -> TrainingText:
        """Raise ValueError: there is no text to count a budget in."""
        raise ValueError(f"a budget in {budget} needs a task of text, and SpamLang draws symbols without end")

    def check_held_out(self, sequences: int) -> None:
        """Raise ValueError when the loss cannot be measured on so many sequences."""

    def held_out_tokens(self, sequences: int) -> float:
        """Return the scored tokens of so many held-out sequences."""
        return sequences * self.positions


class Size(Part):
    """The tokens, separators included, that one vocabulary size makes of a prepared corpus."""

    vocab_size: Annotated[int, Field(ge=2)]
    tokens: Positive
    held_out_tokens: Positive


class Prepared(Part):
    """A prepared corpus: its name, what is in it, and the digest by which a trial's key pins its content.

    ``isoloss data prepare`` prints it, to be written into a study, or ``isoloss.prepared(name)`` reads it from the
    data folder. With a name alone a study can be planned, where its budget allows, and not be run.
    """

    name: Name
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    documents: Positive | None = None
    bytes: Positive | None = None
    held_out_documents: Positive | None = None
    held_out_bytes: Positive | None = None
    sizes: Annotated[tuple[Size, ...], Listed] = ()


class Text(Part):
    """Documents of a prepared corpus, such as FineWeb, cut into tokens by a tokenizer of ``vocab_size``.

    Each pass goes through all training documents in an order of its own, the same for every vocabulary; each document
    is followed by the separator token, and the tokens are split into sequences without cropping. The loss is in bits
    per byte of held-out text, since a token of a larger vocabulary holds more of it; results hold it in nats per
    token, and above that of unigrams (Tao et al. 2024), too. Its floor is unknown.
    """

    kind: Literal["text"] = "text"
    data: Prepared
    vocab_size: Annotated[int, Field(ge=2)]
    sequence_length: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _has_size(self) -> Text:
        if self.data.sizes and self.size is None:
            raise ValueError(
                f"vocab_size must be one of {', '.join(str(size.vocab_size) for size in self.data.sizes)}, for which "
                f"{self.data.name!r} was prepared, not {self.vocab_size}"
            )
        return self

    @property
    def size(self) -> Size | None:
        """The corpus in this vocabulary, where it is known."""
        return next((size for size in self.data.sizes if size.vocab_size == self.vocab_size), None)

    @property
    def floor(self) -> float:
        """What losses are counted above: 0, since nobody knows the entropy of text."""
        return 0.0

    @property
    def positions(self) -> int:
        """Scored tokens of one sequence."""
        return self.sequence_length

    @property
    def input_vocab_size(self) -> int:
        """Rows of the input embedding."""
        return self.vocab_size

    @property
    def draws_per_sequence(self) -> int:
        """Draws in one sequence: every token counts as one."""
        return self.sequence_length

    @property
    def unit(self) -> str:
        """The unit of its loss, for labels; ``unit_in_full`` says of what."""
        return "bits/byte"

    @property
    def unit_in_full(self) -> str:
        return "bits per byte of held-out text"

    @property
    def floor_known(self) -> bool:
        """Whether the irreducible loss is known, so that a loss above it is an excess."""
        return False

    def training_text(self, budget: str) -> TrainingText:
        """Return the size of the training documents; raises ValueError where it is not known."""
        if self.data.bytes is None or self.size is None:
            raise ValueError(
                f"a budget in {budget} needs to know how large the corpus {self.data.name!r} is: prepare it, then "
                "write task.data as `isoloss data prepare` prints it"
            )
        return TrainingText(self.data.bytes, self.size.tokens)

    def check_held_out(self, sequences: int) -> None:
        """Raise ValueError when the loss cannot be measured on so many documents."""
        documents = self.data.held_out_documents
        if documents is not None and sequences > documents:
            raise ValueError(
                f"evaluation.sequences must be at most the {documents} documents that {self.data.name!r} holds out, "
                f"not {sequences}"
            )

    def held_out_tokens(self, sequences: int) -> float:
        """Return the scored tokens of so many held-out documents, on average; of a sequence each where unknown."""
        if self.size is None or not self.data.held_out_documents:
            return sequences * self.positions
        return self.size.held_out_tokens * sequences / self.data.held_out_documents


Task = Annotated[Union[SpamLang, Text], Field(discriminator="kind")]
