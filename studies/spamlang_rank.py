"""Does a larger vocabulary narrow the band of learning rates that converge, at each rank of the head?"""

from isoloss import AdamW, Choice, Decoder, Grid, Log, LowRank, SpamLang, Steps, Study, Verdict

study = Study(
    name="spamlang-rank",
    question="Does a larger vocabulary narrow the band of learning rates that converge, at each head rank?",
    task=SpamLang(vocab_size=256, sequence_length=8),
    model=Decoder(width=32, depth=2),
    head=LowRank(rank=16),
    optimizer=AdamW(learning_rate=3e-3),
    budget=Steps(300, batch_size=32),
    axes={
        "task.vocab_size": Choice(64, 256, 1024),
        "head.rank": Choice(4, 16, 32),
        "optimizer.learning_rate": Log(1e-4, 1e-1, points=7),
    },
    replicates=2,
    verdict=Verdict(converged_below=0.05),
    search=Grid(),
)
