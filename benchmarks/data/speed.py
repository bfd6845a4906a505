"""How much of a core tokenising takes, beside the tokenizer alone. CPU seconds, so that a busy machine counts less."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.data.corpora import corpus, sample, texts
from tokenizers import Tokenizer

from isoloss import Ladder
from isoloss.data.job import Job
from isoloss.data.ladder import SEPARATOR, train_ladder
from isoloss.data.prepare import prepare
from isoloss.data.sources import list_files
from isoloss.data.tokenise import tokenise_file

VOCAB_SIZES = (1024, 2048, 4096, 8192, 16384)
BATCH = 1_000
"""Documents that the tokenizer alone is given at a time."""


def speed(repeats: int) -> None:
    """Print what the whole stage and the ladder cost, both in terms of the tokenizer alone."""
    documents = texts()
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "bench")
        asked = corpus(sample().parent, VOCAB_SIZES)
        prepare(asked, folder)

        def stage(*vocab_sizes: int) -> float:
            [file] = list_files(asked.source)
            job = Job(folder=str(folder), number=0, file=file, source=asked.source, where=asked.where,
                      separator=SEPARATOR, vocab_sizes=vocab_sizes)  # fmt: skip
            return _seconds(lambda: tokenise_file(job.model_dump_json()))

        def alone(vocab_size: int) -> float:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / f"{vocab_size}.json"))
            return _seconds(lambda: _encode(tokenizer, documents))

        pairs = {V: (_least(stage, V, repeats), _least(alone, V, repeats)) for V in VOCAB_SIZES}
        together = min(stage(*VOCAB_SIZES) for _ in range(repeats))
    training = _seconds(lambda: train_ladder(Ladder(*VOCAB_SIZES), lambda: documents))
    print(f"{megabytes:.1f} MB of text, {len(documents):,} documents, one thread; CPU seconds, least of {repeats}")
    for vocab_size, (whole, bare) in pairs.items():
        print(f"V {vocab_size:>6}: stage {whole:.2f}, encode_batch alone {bare:.2f}, ratio {whole / bare:.2f}x")
    five = sum(whole for whole, _ in pairs.values())
    bare = sum(bare for _, bare in pairs.values())
    print(
        f"ladder of {len(VOCAB_SIZES)}: training {training:.2f}, stage of all at once {together:.2f}; together "
        f"{(training + together) / five:.2f}x of {len(VOCAB_SIZES)} stages one by one, "
        f"{(training + together) / bare:.2f}x of encode_batch alone"
    )


def _encode(tokenizer: Tokenizer, documents: list[str]) -> None:
    for start in range(0, len(documents), BATCH):
        tokenizer.encode_batch(documents[start : start + BATCH], add_special_tokens=False)


def _least(seconds: Callable[[int], float], vocab_size: int, repeats: int) -> float:
    return min(seconds(vocab_size) for _ in range(repeats))


def _seconds(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before
