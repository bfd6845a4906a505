"""Preparing a corpus: the stages, each of which leaves files that a rerun finds and does not make again.

Every file is a pure function of the corpus and its documents, whichever process makes it and in whatever order.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from isoloss.config.base import messages, value_label
from isoloss.config.corpus import Corpus, Files, Hub, Ladder, Tokenizer
from isoloss.config.tasks import Prepared
from isoloss.data.card import AGAIN, DataError
from isoloss.data.encoder import Encoder
from isoloss.data.files import (
    read_arrow,
    read_json,
    remove_unfinished,
    write_arrow,
    write_json,
    write_text,
    writing,
)
from isoloss.data.frozen import frozen_texts, sample
from isoloss.data.job import Each, Job, in_turn
from isoloss.data.ladder import SEPARATOR, load_tokenizer, train_ladder
from isoloss.data.layout import Layout
from isoloss.data.manifest import FORMAT, card, describe
from isoloss.data.scan import scan_file
from isoloss.data.selection import DOCUMENTS, Selection, dropped_summary, freeze, frozen_summary, select
from isoloss.data.sources import SourceFile, list_files
from isoloss.data.tokenise import tokenise_file

Say = Callable[[str], None]
LOCK = "prepare.lock"
PLACES = ("source.pattern", "tokenizer.file")
"""The fields of a corpus that say where something is, not what: it may have moved since."""


def prepare(corpus: Corpus, folder: Path, each: Each = in_turn, say: Say = lambda text: None) -> Prepared:
    """Make the shards of a corpus in ``folder``, or what of them is missing there, and return its card.

    ``each`` runs the stages that handle one source file at a time; ``say`` is told what happens between them. Raises
    DataError when the folder was begun for another corpus, another process is preparing it, a source file is bad or
    has changed since, or a file cannot be written; what is complete by then is there for the next time.
    """
    layout = Layout(folder.absolute())
    if layout.card.is_file():
        _check_request(layout, corpus)
    else:
        with _alone(folder):
            if layout.request.is_file():
                _check_request(layout, corpus)
            else:
                write_json(layout.request, {"format": FORMAT, "corpus": corpus.canonical})
            remove_unfinished(folder)
            _prepare(corpus, layout, each, say)
    return Prepared.model_validate_json(layout.card.read_text())


def _prepare(corpus: Corpus, layout: Layout, each: Each, say: Say) -> None:
    source = _fetched(corpus.source, layout, say)
    separator, missing = SEPARATOR, b""
    if isinstance(corpus.tokenizer, Tokenizer):
        separator = corpus.tokenizer.separator
        vocab_sizes = [_copy_tokenizer(corpus.tokenizer, layout)]
        missing = _encoder(layout, vocab_sizes[0], separator).missing
    jobs = [
        Job(folder=str(layout.root), number=number, file=file, source=source, where=corpus.where, separator=separator,
            missing=tuple(missing))
        for number, file in enumerate(_frozen_files(layout, source))
    ]  # fmt: skip
    _run(each, "scan", scan_file, [job for job in jobs if not layout.scan(job.number).is_file()])
    if not layout.summary.is_file():
        say("selecting documents")
        _freeze(corpus, layout, [job.file.name for job in jobs])
    if isinstance(corpus.tokenizer, Ladder):
        vocab_sizes = _train_tokenizers(corpus.tokenizer, layout, jobs, say)
    unfinished = (_without_shards(job, vocab_sizes) for job in jobs)
    _run(each, "tokenise", tokenise_file, [job for job in unfinished if job.vocab_sizes])
    for vocab_size in vocab_sizes:
        _total(layout, vocab_size, separator, len(jobs))
    remove_unfinished(layout.root)  # what workers left that died meanwhile
    manifest = describe(corpus.name, layout, len(jobs), vocab_sizes)
    write_json(layout.manifest, manifest)
    write_json(layout.card, card(manifest).canonical)


def _check_request(layout: Layout, corpus: Corpus) -> None:
    """Raise DataError when the folder was begun under another format or for another corpus."""
    request = read_json(layout.request)
    if request["format"] != FORMAT:
        raise DataError(
            f"{layout.root} has format {request['format']}, and this isoloss writes {FORMAT}; use the isoloss that "
            "made it, prepare under another name, or delete the folder"
        )
    try:
        was = dict(Corpus.model_validate_json(json.dumps(request["corpus"])).leaves())
    except ValidationError as error:
        raise DataError(f"cannot read {layout.request}: {messages(error)}; {AGAIN}") from None
    now = dict(corpus.leaves())
    for field in {**now, **was}:
        if field not in PLACES and (field in was, was.get(field)) != (field in now, now.get(field)):
            asked, begun = (value_label(fields[field]) if field in fields else "nothing" for fields in (now, was))
            raise DataError(
                f"{field}: {layout.root} was begun with {begun}, and the corpus {corpus.name!r} asks for {asked}; "
                "prepare it under another name, or delete the folder"
            )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder as the only process; the lock is the kernel's (flock) and ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / LOCK, "ab")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise DataError(f"cannot write the folder {folder}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another process is preparing {folder}; wait for it, or stop it first") from None
        yield


def _fetched(source: Files | Hub, layout: Layout, say: Say) -> Files:
    if isinstance(source, Files):
        return source
    from isoloss.data.hub import fetch  # its extra is seldom installed

    return fetch(source, layout.root, say)


def _frozen_files(layout: Layout, source: Files) -> list[SourceFile]:
    """Return the source files, as they were when the folder was begun; they may lie elsewhere by now."""
    found = list_files(source)
    if not layout.files.is_file():
        write_json(layout.files, [file.canonical for file in found])
        return found
    was = {item["name"]: SourceFile.model_validate(item) for item in read_json(layout.files)}
    now = {file.name: file for file in found}
    for name in sorted({*was, *now}):
        old, new = was.get(name), now.get(name)
        if old is None or new is None:
            change = "is new" if old is None else "is gone"
        elif old.size != new.size:
            change = f"had {old.size} bytes and has {new.size}"
        elif old.uri == new.uri and old.modified != new.modified:
            change = "was written again"
        else:
            continue
        raise DataError(
            f"{name}, which {source.pattern} stands for, {change} since {layout.root} was begun; restore the files, "
            "prepare the corpus under another name, or delete that folder"
        )
    return found


def _run(each: Each, stage: str, function: Callable[[str], int], jobs: Sequence[Job]) -> None:
    if jobs:
        for _ in each(stage, function, [job.model_dump_json() for job in jobs]):
            pass


def _freeze(corpus: Corpus, layout: Layout, names: Sequence[str]) -> None:
    """Write the documents of each file that are kept, then what was kept and dropped."""
    scans = [read_arrow(layout.scan(number)) for number in range(len(names))]
    selection, start = select(scans, corpus), 0
    for number, scan in enumerate(scans):
        part = Selection(*(values[start : start + len(scan)] for values in selection))
        write_arrow(layout.documents(number), DOCUMENTS, freeze(scan, part).to_batches())
        start += len(scan)
    kept = frozen_summary(read_arrow(layout.documents(number)) for number in range(len(names)))
    write_json(layout.summary, {**kept, "dropped": dropped_summary(scans, names, selection.dropped_N)})


def _train_tokenizers(ladder: Ladder, layout: Layout, jobs: Sequence[Job], say: Say) -> list[int]:
    """Write the tokenizers of a ladder unless all are there, and return their vocabulary sizes."""

    def texts() -> Iterator[str]:
        frozen = [read_arrow(layout.documents(job.number)) for job in jobs]
        for job, chosen in zip(jobs, sample(frozen, ladder.sample_bytes), strict=True):
            for batch in frozen_texts(job.file, job.source, chosen):
                yield from batch

    if not all(layout.tokenizer(vocab_size).is_file() for vocab_size in ladder.vocab_sizes):
        say(f"training tokenizers of {', '.join(f'{size:,}' for size in ladder.vocab_sizes)} tokens")
        for vocab_size, text in train_ladder(ladder, texts, say).items():
            write_text(layout.tokenizer(vocab_size), text)
    return list(ladder.vocab_sizes)


def _copy_tokenizer(config: Tokenizer, layout: Layout) -> int:
    """Write an existing tokenizer unless it is there, and return its vocabulary size."""
    vocab_size, text = load_tokenizer(config)
    copy = layout.tokenizer(vocab_size)
    for path in copy.parent.glob("*.json"):
        if path != copy or path.read_text(encoding="utf-8") != text:
            raise DataError(
                f"{config.file} is another tokenizer than {path}, with which that folder was begun; restore it, "
                "prepare the corpus under another name, or delete the folder"
            )
    if not copy.is_file():
        write_text(copy, text)
    return vocab_size


def _encoder(layout: Layout, vocab_size: int, separator: str) -> Encoder:
    return Encoder(layout.tokenizer(vocab_size).read_text(encoding="utf-8"), separator)


def _without_shards(job: Job, vocab_sizes: Sequence[int]) -> Job:
    """Return a job for the vocabularies in which its file has no shard."""
    missing = [size for size in vocab_sizes if not job.layout.shard(size, job.number, "arrow").is_file()]
    return job.model_copy(update={"vocab_sizes": tuple(missing)})


def _total(layout: Layout, vocab_size: int, separator: str, files: int) -> None:
    """Write how often each token of a vocabulary occurs, and how many bytes it stands for."""
    counts_V = np.zeros(vocab_size, np.int64)
    for number in range(files):
        counts_V += np.load(layout.shard(vocab_size, number, "counts.npy"))
    bytes_V = _encoder(layout, vocab_size, separator).bytes_V
    for name, values_V in (("counts.npy", counts_V), ("bytes.npy", bytes_V)):
        with writing(layout.tokens(vocab_size, name)) as file:
            np.save(file, values_V)
