"""Does a larger vocabulary narrow the band of learning rates that converge, or does thinner coverage?

At an equal number of sequences, a symbol of a larger vocabulary is drawn less often. The second arm keeps the
independent draws per symbol equal, by a batch that grows with the vocabulary (Murugan 2026, against Godey & Artzi
2026). Both arms in one map.
"""

from isoloss import AdamW, Choice, Coverage, Decoder, Evaluation, Grid, Linear, Log, SpamLang, Steps, Study, Verdict

study = Study(
    name="spamlang-coverage",
    question="Does a larger vocabulary narrow the band of learning rates that converge, or does thinner coverage?",
    task=SpamLang(vocab_size=256, sequence_length=4),
    model=Decoder(width=32, depth=2, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=3e-3),
    budget=Steps(300, batch_size=32),
    axes={
        "budget": Choice(Steps(300, batch_size=32), Coverage(37.5, steps=300)),
        "task.vocab_size": Choice(64, 256, 1024),
        "optimizer.learning_rate": Log(1e-3, 1e-1, points=5),
    },
    replicates=2,
    evaluation=Evaluation(sequences=256, points=16),
    verdict=Verdict(converged_below=0.08),
    search=Grid(),
    map=("optimizer.learning_rate", "task.vocab_size"),
)
