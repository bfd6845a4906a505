"""Which LM head trains best, and does it matter which: at equal parameters, and at equal computation?

    isoloss run studies/heads_compared.py:parameters
    isoloss run studies/heads_compared.py:flops

At equal parameters each head is sized to the linear head's 8,192 (within 3 %), for the same updates. At equal
computation heads have their usual sizes, and those that cost more train on fewer batches. The last two or three heads
are controls (Murugan 2026).
"""

from typing import Any

from isoloss import (
    AdamW,
    Adaptive,
    BackwardRank,
    Choice,
    Decoder,
    DummyClasses,
    Entmax,
    Evaluation,
    Experts,
    Flops,
    Linear,
    Log,
    LowRank,
    Mixture,
    Monotone,
    Probes,
    ProjectedUpdate,
    Sigsoftmax,
    SpamLang,
    Sparsemax,
    Spherical,
    Steps,
    Study,
    Wide,
)

POINTWISE = (Sigsoftmax(), Monotone(pieces=16), Sparsemax(), Entmax(), Spherical(), Spherical(taylor=True))

EQUAL_PARAMETERS = (
    *(Linear(), LowRank(rank=28), Mixture(components=4, rank=21), *POINTWISE, Adaptive(narrowing=1.18)),
    *(Wide(factor=0.79, gated=True), Experts(rank=7), BackwardRank(rank=8), ProjectedUpdate()),
)

USUAL_SIZES = (
    *(Linear(), Linear(tied=True), LowRank(rank=8), Mixture(components=4), *POINTWISE, Adaptive(), Wide(factor=2.0)),
    *(Wide(factor=2.0, gated=True), Experts(rank=16), BackwardRank(rank=8), ProjectedUpdate(), DummyClasses(count=256)),
)


COMMON: dict[str, Any] = {
    "task": SpamLang(vocab_size=256, sequence_length=4),
    "model": Decoder(width=32, depth=2, attention_heads=2),
    "head": Linear(),
    "optimizer": AdamW(learning_rate=1e-2),
    "replicates": 3,
    "evaluation": Evaluation(sequences=256, points=12, probes=Probes(stability=False)),
}


def parameters() -> Study:
    return Study(
        **COMMON,
        name="heads-parameters",
        question="Which head of equally many parameters learns V symbols best in equally many updates?",
        budget=Steps(150, batch_size=32),
        axes={"head": Choice(*EQUAL_PARAMETERS), "optimizer.learning_rate": Log(1e-3, 1e-1, points=5)},
    )


def flops() -> Study:
    return Study(
        **COMMON,
        name="heads-flops",
        question="Which head of usual size learns V symbols best for equally many floating-point operations?",
        budget=Flops(2.9e9, batch_size=32),
        axes={"head": Choice(*USUAL_SIZES), "optimizer.learning_rate": Log(1e-3, 1e-1, points=5)},
    )
