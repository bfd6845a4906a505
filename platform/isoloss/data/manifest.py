"""The manifest: all of a prepared corpus described, each file by its hash, and the card that follows from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from isoloss.config.base import canonical_json
from isoloss.config.tasks import Prepared, Size
from isoloss.data.card import DataError
from isoloss.data.files import read_arrow, read_json, sha256
from isoloss.data.layout import PARTS, Layout

FORMAT = 1
"""Of the folder; it enters the digest."""


def describe(name: str, layout: Layout, files: int, vocab_sizes: Sequence[int]) -> dict[str, Any]:
    """Return the manifest of a corpus of so many source files, as JSON values.

    Raises DataError when a shard was made with another tokenizer, or of other documents, than the folder has.
    """
    frozen = [read_arrow(layout.documents(number)) for number in range(files)]
    hashes = [sha256(layout.documents(number)) for number in range(files)]
    documents = read_json(layout.summary)
    sizes = [_size(layout, vocab_size, frozen, hashes) for vocab_size in vocab_sizes]
    return {
        "format": FORMAT,
        "name": name,
        "digest": digest(documents["hash"], {size["vocab_size"]: size["tokenizer"] for size in sizes}),
        "documents": {**documents, "sha256": hashes},
        "sizes": sizes,
    }


def digest(documents: str, tokenizers: Mapping[int, str]) -> str:
    """Return what pins a corpus: 16 hexadecimal digits of a hash over its documents and its tokenizers, by V."""
    parts = {"format": FORMAT, "documents": documents, "sizes": [[size, tokenizers[size]] for size in tokenizers]}
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]


def card(manifest: dict[str, Any]) -> Prepared:
    """Return what a study needs to know of a corpus."""
    training, held_out = manifest["documents"]["training"], manifest["documents"]["held_out"]
    return Prepared(
        name=manifest["name"],
        digest=manifest["digest"],
        documents=training["documents"],
        bytes=training["bytes"],
        held_out_documents=held_out["documents"],
        held_out_bytes=held_out["bytes"],
        sizes=tuple(Size(**{field: size[field] for field in Size.model_fields}) for size in manifest["sizes"]),
    )


def check(folder: Path) -> list[str]:
    """Return what differs between a prepared corpus and its manifest: each file that is missing or has other bytes.

    Raises DataError when the corpus is not prepared.
    """
    layout = Layout(folder)
    if not layout.card.is_file():
        raise DataError(f"{folder} holds no prepared corpus; prepare it with `isoloss data prepare`")
    manifest = read_json(layout.manifest)
    expected = {layout.documents(number): sha for number, sha in enumerate(manifest["documents"]["sha256"])}
    for size in manifest["sizes"]:
        vocab_size = size["vocab_size"]
        expected[layout.tokenizer(vocab_size)] = size["tokenizer"]
        expected |= {layout.tokens(vocab_size, name): sha for name, sha in size["sha256"].items()}
    found = []
    for path, sha in expected.items():
        if not path.is_file():
            found.append(f"{path.relative_to(folder)} is missing")
        elif sha256(path) != sha:
            found.append(f"{path.relative_to(folder)} has other bytes")
    if read_json(layout.card) != card(manifest).canonical:
        found.append(f"{layout.card.name} says other than {layout.manifest.name}")
    return found


def _size(layout: Layout, vocab_size: int, frozen: Sequence[pa.Table], hashes: Sequence[str]) -> dict[str, Any]:
    tokenizer, tokens, held_out_tokens = sha256(layout.tokenizer(vocab_size)), 0, 0
    files = {name: sha256(layout.tokens(vocab_size, name)) for name in ("counts.npy", "bytes.npy")}
    for number, documents in enumerate(frozen):
        path = layout.shard(vocab_size, number, "arrow")
        shard = read_arrow(path)
        described = json.loads(shard.schema.metadata[b"isoloss"])
        for part, now in (("tokenizer", tokenizer), ("documents", hashes[number])):
            if described[part] != now:
                raise DataError(f"{path} was made with other {part} than {layout.root} has now; delete that folder")
        tokens += pc.sum(shard["tokens"]).as_py() or 0
        held_out_tokens += pc.sum(shard["tokens"].filter(documents["held_out"])).as_py() or 0
        files |= {layout.shard(vocab_size, number, f"{p}.bin").name: described[f"{p}_sha256"] for p in PARTS}
        files[path.name] = sha256(path)
    return {
        "vocab_size": vocab_size,
        "tokens": tokens - held_out_tokens,
        "held_out_tokens": held_out_tokens,
        "dtype": described["dtype"],
        "separator": described["separator"],
        "tokenizer": tokenizer,
        "sha256": files,
    }
