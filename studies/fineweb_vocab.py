"""How does the vocabulary decide what a model learns from text: at equal tokens, equal bytes, or equal computation?

    isoloss data sample .isoloss/sample.parquet
    isoloss data prepare studies/fineweb_vocab.py
    isoloss run studies/fineweb_vocab.py:small

`full` asks it of FineWeb-Edu at equal text, on GPUs, after `isoloss data prepare studies/fineweb_vocab.py:fineweb_edu`.
Losses are in bits per byte of the same held-out documents, which every vocabulary shares.
"""

from isoloss import (
    AdamW,
    Bytes,
    Choice,
    Corpus,
    Decoder,
    Evaluation,
    Files,
    Flops,
    Hub,
    Ladder,
    Linear,
    Log,
    Study,
    Text,
    Tokens,
    Verdict,
    prepared,
)

corpus = Corpus(name="docstrings", source=Files(".isoloss/sample.parquet"), tokenizer=Ladder(512, 2048, 8192))

fineweb_edu = Corpus(
    name="fineweb-edu-10bt",
    source=Hub.fineweb_edu("sample-10BT", documents=2_000_000),
    tokenizer=Ladder(1024, 4096, 16_384, 65_536, 131_072),
    held_out_bytes=10_000_000,
)


def small() -> Study:
    return Study(
        name="docstrings-vocab",
        question="Which vocabulary learns most from text: at equal tokens, equal bytes, or equal computation?",
        task=Text(data=prepared(corpus.name), vocab_size=2048, sequence_length=128),
        model=Decoder(width=64, depth=2),
        head=Linear(),
        optimizer=AdamW(learning_rate=3e-3),
        budget=Tokens(200_000, batch_size=8),
        axes={
            "task.vocab_size": Choice(512, 2048, 8192),
            "budget": Choice(Tokens(200_000, batch_size=8), Bytes(570_000, batch_size=8), Flops(3.4e11, batch_size=8)),
            "optimizer.learning_rate": Choice(3e-3, 1e-2),
        },
        replicates=2,
        evaluation=Evaluation(sequences=24, points=12),
        verdict=Verdict(converged_below=3.0),
    )


def full() -> Study:
    return Study(
        name="fineweb-vocab",
        question="How does the vocabulary decide which learning rates pretrain well on FineWeb-Edu, at equal text?",
        task=Text(data=prepared(fineweb_edu.name), vocab_size=16_384, sequence_length=1024),
        model=Decoder(width=768, depth=12, attention_heads=12),
        head=Linear(),
        optimizer=AdamW(learning_rate=1e-3, weight_decay=0.1),
        budget=Bytes(5e9, batch_size=128),
        axes={
            "task.vocab_size": Choice(1024, 4096, 16_384, 65_536, 131_072),
            "optimizer.learning_rate": Log(1e-4, 1e-2, points=5),
        },
        replicates=3,
        evaluation=Evaluation(sequences=1000, points=32),
        verdict=Verdict(converged_below=1.2),
    )
