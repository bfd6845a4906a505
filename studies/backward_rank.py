"""Does it harm training that the gradient reaches the backbone through few dimensions? A causal test (Murugan 2026).

    isoloss data sample .isoloss/sample.parquet
    isoloss data prepare studies/fineweb_rank.py
    isoloss run studies/backward_rank.py

`backward_rank(r)` computes ordinary logits and updates the head exactly, but sends the best rank-r version of the
gradient to the backbone. `low_rank(r)` confines the logits to rank r, and with them the gradient: both directions at
once. What the second loses beyond the first, the rank of the logits costs, not that of the gradient. Five replicates
that share all random streams, so that differences to `linear` are paired. Of 1e-3, 3e-3, 1e-2 and 3e-2, the best
learning rate of every arm is one of the two in the middle.
"""

from isoloss import (
    AdamW,
    BackwardRank,
    Choice,
    Decoder,
    Evaluation,
    Linear,
    LowRank,
    Study,
    Text,
    Tokens,
    Verdict,
    prepared,
)

study = Study(
    name="backward-rank",
    question="Does it harm training that the gradient reaches the backbone through few dimensions?",
    task=Text(data=prepared("docstrings"), vocab_size=512, sequence_length=128),
    model=Decoder(width=32, depth=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Tokens(300_000, batch_size=8),
    axes={
        "head": Choice(
            Linear(),
            BackwardRank(rank=16),
            LowRank(rank=16),
            BackwardRank(rank=8),
            LowRank(rank=8),
            BackwardRank(rank=4),
            LowRank(rank=4),
        ),
        "optimizer.learning_rate": Choice(3e-3, 1e-2),
    },
    replicates=5,
    evaluation=Evaluation(sequences=24, points=8),
    verdict=Verdict(converged_below=3.0),
)
