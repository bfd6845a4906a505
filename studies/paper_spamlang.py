"""Godey & Artzi's (2026) SpamLang on the SmolLM2-135M backbone, at their budget and at equal coverage; for GPUs."""

from isoloss import AdamW, Choice, Coverage, Decoder, Linear, Log, SpamLang, Steps, Study, Verdict

study = Study(
    name="paper-spamlang",
    question="At the paper's own scale, is it the vocabulary or the coverage that stops SpamLang from training?",
    task=SpamLang(vocab_size=1024, sequence_length=64),
    model=Decoder.smollm2_135m(),
    head=Linear(tied=True),
    optimizer=AdamW(learning_rate=1e-3),
    budget=Steps(10_000, batch_size=64),
    axes={
        "budget": Choice(Steps(10_000, batch_size=64), Coverage(37.5, steps=10_000)),
        "task.vocab_size": Choice(1024, 4096, 16_384, 65_536, 131_072),
        "optimizer.learning_rate": Log(1e-5, 1e-2, points=7),
    },
    replicates=3,
    verdict=Verdict(converged_below=0.08),
    map=("optimizer.learning_rate", "task.vocab_size"),
)
