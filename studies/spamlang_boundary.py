"""Where is the edge of the band of learning rates that converge, and how does it move with the vocabulary?

Instead of a grid, every trial is placed where it is least known whether training converges. Four seeds take turns, so
that the map tells the median seed's edge, and the fringe around it where the outcome is a matter of the seed.
"""

from isoloss import AdamW, Boundary, Choice, Decoder, Evaluation, Linear, Log, SpamLang, Steps, Study, Verdict

study = Study(
    name="spamlang-boundary",
    question="Where does the band of learning rates that converge end, and how does it close as the vocabulary grows?",
    task=SpamLang(vocab_size=256, sequence_length=4),
    model=Decoder(width=32, depth=2, attention_heads=2),
    head=Linear(),
    optimizer=AdamW(learning_rate=3e-3),
    budget=Steps(300, batch_size=32),
    axes={
        "optimizer.learning_rate": Log(1e-4, 1.0),
        "task.vocab_size": Choice(64, 96, 128, 192, 256, 384, 512, 768, 1024),
    },
    replicates=4,
    evaluation=Evaluation(sequences=256, points=16),
    verdict=Verdict(converged_below=0.08),
    search=Boundary(trials=128),
)
