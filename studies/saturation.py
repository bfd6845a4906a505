"""When does a small language model stop following its own power law, and does its head degenerate before or after?

    isoloss data sample .isoloss/sample.parquet
    isoloss data prepare studies/fineweb_rank.py
    isoloss run studies/saturation.py

Godey et al. (2024) saw small models saturate late in training, while the singular values of their heads and the hidden
states collapsed. Here the learning rate is constant after a short warm-up, so that nothing but training itself can
bend a curve, and there are many evaluations, so that a bend can be placed.
"""

from isoloss import (
    AdamW,
    Choice,
    Decoder,
    Evaluation,
    Linear,
    LowRank,
    Probes,
    Steps,
    Study,
    Text,
    Verdict,
    WarmupStableDecay,
    prepared,
)

study = Study(
    name="saturation",
    question="When does a small model stop following its own power law, and does its head degenerate before or after?",
    task=Text(data=prepared("docstrings"), vocab_size=512, sequence_length=32),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=1e-2, schedule=WarmupStableDecay(warmup=0.01, decay=0.0)),
    budget=Steps(6000, batch_size=8),
    axes={"head": Choice(Linear(), LowRank(rank=4), LowRank(rank=2))},
    replicates=2,
    evaluation=Evaluation(sequences=8, points=80, probes=Probes(spectra=True, survival=False, stability=False)),
    verdict=Verdict(converged_below=2.0),
)
