"""Shards as training reads them, from folders written here by hand: what is read, and what is refused by name."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import isoloss
from isoloss import Prepared, Size
from isoloss.data.card import DataError, card_text
from isoloss.data.order import Order
from isoloss.data.shards import Shards

SEPARATOR = 3
VOCABULARIES = {50: "uint16", 70_000: "uint32"}


class Document(SimpleNamespace):
    """One document: its text's hash and bytes, whether it is held out, and its tokens in each vocabulary."""


def made_up(seed: int, files: tuple[int, ...]) -> list[list[Document]]:
    draw = random.Random(seed)

    def document() -> Document:
        text = draw.randbytes(draw.randint(1, 30))
        tokens = {V: [*(draw.randrange(4, V) for _ in range(draw.randint(0, 9))), SEPARATOR] for V in VOCABULARIES}
        return Document(hash=hashlib.blake2b(text, digest_size=16).digest(), bytes=len(text), tokens=tokens,
                        held_out=draw.random() < 0.4)  # fmt: skip

    return [[document() for _ in range(count)] for count in files]


def arrow(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def write(folder: Path, files: list[list[Document]]) -> Prepared:
    """Write what `isoloss data prepare` would, as far as training reads it, and return its card."""
    for number, documents in enumerate(files):
        columns = {
            "row": pa.array(range(len(documents)), pa.int64()),
            "id": pa.array([f"urn:{place}" for place in range(len(documents))], pa.string()),
            "hash": pa.array([document.hash for document in documents], pa.binary(16)),
            "bytes": pa.array([document.bytes for document in documents], pa.int64()),
            "held_out": pa.array([document.held_out for document in documents], pa.bool_()),
        }
        arrow(folder / f"documents/{number:05d}.arrow", pa.table(columns))
    sources = [{"uri": f"/texts/{number}.txt", "size": 1, "modified": 1} for number in range(len(files))]
    (folder / "files.json").write_text(json.dumps(sources))
    everything = [document for documents in files for document in documents]
    training = [document for document in everything if not document.held_out]
    held_out = [document for document in everything if document.held_out]
    sizes = []
    for V, dtype in VOCABULARIES.items():
        tokens = folder / "tokens" / str(V)
        for number, documents in enumerate(files):
            lengths = pa.array([len(document.tokens[V]) for document in documents], pa.int64())
            about = {b"isoloss": json.dumps({"dtype": dtype}).encode()}
            arrow(tokens / f"{number:05d}.arrow", pa.table({"tokens": lengths}).replace_schema_metadata(about))
            for split, chosen in (("train", False), ("held_out", True)):
                ids = [id for document in documents if document.held_out == chosen for id in document.tokens[V]]
                (tokens / f"{number:05d}.{split}.bin").write_bytes(
                    np.array(ids, np.dtype(dtype).newbyteorder("<")).tobytes()
                )
        ids = [id for document in everything for id in document.tokens[V]]
        np.save(tokens / "counts.npy", np.bincount(ids, minlength=V).astype(np.int64))
        np.save(tokens / "bytes.npy", (np.arange(V, dtype=np.int32) % 7) * (np.arange(V) != SEPARATOR))
        sizes.append(
            Size(
                vocab_size=V,
                tokens=sum(len(document.tokens[V]) for document in training),
                held_out_tokens=sum(len(document.tokens[V]) for document in held_out),
            )
        )
    card = Prepared(
        name=folder.name,
        digest="0123456789abcdef",
        documents=len(training),
        bytes=sum(document.bytes for document in training),
        held_out_documents=len(held_out),
        held_out_bytes=sum(document.bytes for document in held_out),
        sizes=tuple(sizes),
    )
    (folder / "card.json").write_text(card.model_dump_json())
    return card


@pytest.fixture(autouse=True)
def _nothing_open() -> Iterator[None]:
    yield
    Shards.open.cache_clear()
    Order.of.cache_clear()


@pytest.fixture
def files() -> list[list[Document]]:
    return made_up(0, (12, 0, 30, 1))


@pytest.fixture
def card(tmp_path: Path, files: list[list[Document]]) -> Prepared:
    return write(tmp_path / "corpus", files)


@pytest.mark.parametrize("V", VOCABULARIES)
def test_training_documents_are_read_in_order(
    V: int, tmp_path: Path, files: list[list[Document]], card: Prepared
) -> None:
    shards = Shards.open(tmp_path, card, V)
    expected = [document.tokens[V] for documents in files for document in documents if not document.held_out]
    assert [shards.train[place].tolist() for place in range(len(shards.train))] == expected
    assert shards.train.lengths_K.tolist() == [len(tokens) for tokens in expected]
    assert shards.train.lengths_K.dtype == np.int64
    assert shards.train[0].dtype == VOCABULARIES[V]
    assert (shards.vocab_size, shards.separator) == (V, SEPARATOR)
    assert shards.bytes_V.tolist() == [0 if id == SEPARATOR else id % 7 for id in range(V)]


@pytest.mark.parametrize("V", VOCABULARIES)
def test_held_out_documents_come_in_the_order_of_their_hashes(
    V: int, tmp_path: Path, files: list[list[Document]], card: Prepared
) -> None:
    chosen = sorted(
        (document for documents in files for document in documents if document.held_out),
        key=lambda document: int.from_bytes(document.hash, "big"),
    )[:6]
    held_out = Shards.open(tmp_path, card, V).held_out(6)
    assert held_out.tokens_N.tolist() == [SEPARATOR, *(id for document in chosen for id in document.tokens[V])]
    assert held_out.tokens_N.dtype == np.int64
    places = [place for place, document in enumerate(chosen) for _ in document.tokens[V]]
    assert held_out.document_N.tolist() == places
    assert held_out.bytes_U.tolist() == [document.bytes for document in chosen]


def test_too_few_held_out_documents_are_counted(tmp_path: Path, card: Prepared) -> None:
    shards = Shards.open(tmp_path, card, 50)
    assert len(shards.held_out(card.held_out_documents).bytes_U) == card.held_out_documents
    asked = card.held_out_documents + 1
    with pytest.raises(DataError, match=f"{asked} held-out documents .* holds out {card.held_out_documents};"):
        shards.held_out(asked)


def test_log_unigrams_are_of_all_tokens(tmp_path: Path, files: list[list[Document]], card: Prepared) -> None:
    log_unigram_V = Shards.open(tmp_path, card, 50).log_unigram_V
    ids = [id for documents in files for document in documents for id in document.tokens[50]]
    for id in range(50):
        if id in ids:
            assert log_unigram_V[id] == pytest.approx(np.log(ids.count(id) / len(ids)), abs=1e-12)
        else:
            assert log_unigram_V[id] == -np.inf
    assert -np.inf in log_unigram_V
    assert np.exp(log_unigram_V).sum() == pytest.approx(1)


def test_what_is_open_is_returned_again(tmp_path: Path, card: Prepared) -> None:
    shards = Shards.open(tmp_path, card, 50)
    again = Shards.open(Path(str(tmp_path)), Prepared.model_validate_json(card.model_dump_json()), 50)
    assert again is shards
    assert Order.of(again, 4) is Order.of(shards, 4)
    assert Order.of(shards, 5) is not Order.of(shards, 4)
    other = Order.of(Shards.open(tmp_path, card, 70_000), 4)
    total = {order: order.tokens_per_pass for order in (Order.of(shards, 4), other)}
    one, two = ([piece.document for piece in order.pieces(0, count)] for order, count in total.items())
    assert one == two


def test_threads_may_share_an_order(tmp_path: Path, card: Prepared) -> None:
    order = Order.of(Shards.open(tmp_path, card, 50), 0)
    size = order.tokens_per_pass
    expected = [order.tokens(number * size + 1, 20).tolist() for number in range(4)]
    wrong = []

    def read(first: int) -> None:
        for step in range(200):
            number = (first + step) % 4
            wrong.extend([number] * (order.tokens(number * size + 1, 20).tolist() != expected[number]))

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- refusals


def test_what_is_not_prepared_says_how(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no corpus 'fineweb' is prepared in .*isoloss data prepare.*ISOLOSS_DATA"):
        Shards.open(tmp_path, Prepared(name="fineweb", digest="0" * 16), 50)


def test_an_unpinned_corpus_gets_the_text_to_paste(tmp_path: Path, card: Prepared) -> None:
    with pytest.raises(DataError, match="without its digest") as got:
        Shards.open(tmp_path, Prepared(name="corpus"), 50)
    pasted = str(got.value).split("prepared:\n")[1]
    assert eval(pasted, {"Prepared": isoloss.Prepared, "Size": isoloss.Size}) == card
    assert pasted == card_text(card)
    assert max(map(len, pasted.splitlines())) < 100


@pytest.mark.parametrize(
    ("field", "value"),
    [("digest", "f" * 16), ("documents", 7), ("bytes", 8), ("held_out_documents", 9), ("held_out_bytes", 10)],
)
def test_another_corpus_is_refused_by_field(field: str, value: object, tmp_path: Path, card: Prepared) -> None:
    with pytest.raises(DataError, match=f"^{field} of .* is {getattr(card, field)} in .* asks for {value};"):
        Shards.open(tmp_path, card.model_copy(update={field: value}), 50)


def test_other_sizes_are_refused(tmp_path: Path, card: Prepared) -> None:
    sizes = (Size(vocab_size=50, tokens=1, held_out_tokens=2),)
    with pytest.raises(DataError, match=r"^sizes of .* asks for size\(50, tokens=1, held_out_tokens=2\);"):
        Shards.open(tmp_path, card.model_copy(update={"sizes": sizes}), 50)


def test_a_digest_is_enough(tmp_path: Path, card: Prepared) -> None:
    assert len(Shards.open(tmp_path, Prepared(name="corpus", digest=card.digest), 50).train) == card.documents


def test_another_vocabulary_is_refused(tmp_path: Path, card: Prepared) -> None:
    with pytest.raises(DataError, match="prepared for vocab_size 50, 70000, not 60"):
        Shards.open(tmp_path, card, 60)


@pytest.mark.parametrize(
    "name", ["00002.train.bin", "00002.held_out.bin", "00001.train.bin", "00000.arrow", "counts.npy", "bytes.npy"]
)
def test_a_missing_file_of_tokens_is_named(name: str, tmp_path: Path, card: Prepared) -> None:
    (tmp_path / "corpus/tokens/50" / name).unlink()
    with pytest.raises(DataError, match=f"tokens/50/{name}"):
        Shards.open(tmp_path, card, 50)


@pytest.mark.parametrize("change", [-1, -2, 2])
def test_a_file_of_another_size_is_named(change: int, tmp_path: Path, card: Prepared) -> None:
    file = tmp_path / "corpus/tokens/50/00002.train.bin"
    data = file.read_bytes()
    file.write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    with pytest.raises(DataError, match=rf"00002\.train\.bin has {len(data) + change} bytes.* need {len(data)};"):
        Shards.open(tmp_path, card, 50)


def test_a_lost_part_is_noticed(tmp_path: Path, card: Prepared) -> None:
    listed = tmp_path / "corpus/files.json"
    listed.write_text(json.dumps(json.loads(listed.read_text())[:2]))
    with pytest.raises(DataError, match=rf"^documents in .* its card says {card.documents};"):
        Shards.open(tmp_path, card, 50)
    listed.unlink()
    with pytest.raises(DataError, match=r"cannot read .*files\.json"):
        Shards.open(tmp_path, card, 50)


def test_counts_of_another_vocabulary_are_refused(tmp_path: Path, card: Prepared) -> None:
    np.save(tmp_path / "corpus/tokens/50/counts.npy", np.ones(49))
    with pytest.raises(DataError, match=r"counts\.npy has the shape \(49,\), .*50"):
        Shards.open(tmp_path, card, 50)


def test_documents_and_tokens_that_do_not_match_are_refused(tmp_path: Path, card: Prepared) -> None:
    source = tmp_path / "corpus/tokens/50"
    (source / "00000.arrow").write_bytes((source / "00002.arrow").read_bytes())
    with pytest.raises(DataError, match=r"00000\.arrow has 30 documents, and .*00000\.arrow has 12"):
        Shards.open(tmp_path, card, 50)


def test_a_card_of_another_isoloss_is_refused(tmp_path: Path, card: Prepared) -> None:
    (tmp_path / "corpus/card.json").write_text('{"name": "corpus", "colour": "red"}')
    with pytest.raises(DataError, match=r"card\.json cannot be read .*colour"):
        Shards.open(tmp_path, card, 50)
