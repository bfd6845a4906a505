"""How much does a head of low rank slow down pretraining on real text, at fixed width and vocabulary?

`small` trains on docstrings, on a laptop, with the learning rate tuned for each rank:

    isoloss data sample .isoloss/sample.parquet
    isoloss data prepare studies/fineweb_rank.py
    isoloss run studies/fineweb_rank.py:small

`paper` is Godey & Artzi's (2026) experiment on FineWeb-Edu, for `isoloss plan studies/fineweb_rank.py:paper`. Put
SmolLM2's tokenizer.json beside it, `isoloss data prepare studies/fineweb_rank.py:fineweb_edu`, and write the printed
`Prepared(...)` into it. Their report gives no learning rate, batch or sequence length; those below are common ones.
"""

from isoloss import (
    AdamW,
    Choice,
    Corpus,
    Decoder,
    Evaluation,
    Files,
    Hub,
    Ladder,
    Log,
    LowRank,
    Prepared,
    Study,
    Text,
    Tokenizer,
    Tokens,
    Verdict,
    WarmupStableDecay,
    prepared,
)

corpus = Corpus(name="docstrings", source=Files(".isoloss/sample.parquet"), tokenizer=Ladder(512, 2048, 8192))

fineweb_edu = Corpus(
    name="fineweb-edu-100bt",
    source=Hub.fineweb_edu("sample-100BT", documents=12_000_000),
    tokenizer=Tokenizer(file="smollm2/tokenizer.json"),
    held_out_bytes=20_000_000,
)


def small() -> Study:
    return Study(
        name="docstrings-rank",
        question="How much does a head of low rank slow down pretraining on text?",
        task=Text(data=prepared(corpus.name), vocab_size=2048, sequence_length=128),
        model=Decoder(width=64, depth=2),
        head=LowRank(rank=64),
        optimizer=AdamW(learning_rate=3e-3),
        budget=Tokens(200_000, batch_size=8),
        axes={"head.rank": Choice(2, 8, 64), "optimizer.learning_rate": Log(3e-4, 3e-2, points=5)},
        replicates=3,
        evaluation=Evaluation(sequences=24, points=12),
        verdict=Verdict(converged_below=3.0),
    )


def paper() -> Study:
    return Study(
        name="paper-fineweb-rank",
        question="At 2B parameters and 11B tokens, how many times fewer tokens does a head of full rank need?",
        task=Text(data=Prepared(name=fineweb_edu.name), vocab_size=49_152, sequence_length=4096),
        model=Decoder.llama3_6_layers(),
        head=LowRank(rank=4096),
        optimizer=AdamW(learning_rate=3e-4, weight_decay=0.1, schedule=WarmupStableDecay(warmup=0.01, decay=0.2)),
        budget=Tokens(11e9, batch_size=256),
        axes={"head.rank": Choice(32, 64, 128, 256, 512, 1024, 2048, 4096)},
        evaluation=Evaluation(sequences=1000, points=48),
        verdict=Verdict(converged_below=0.8),
    )
