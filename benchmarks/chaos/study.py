"""The study that chaos is let loose on, as a user would write it."""

from __future__ import annotations

STUDY = """
from isoloss import AdamW, Choice, Decoder, Evaluation, Log, LowRank, SpamLang, Steps, Study

study = Study(
    name="chaos",
    question="Do the numbers survive whatever fails?",
    task=SpamLang(vocab_size=32, sequence_length=8),
    model=Decoder(width=16, depth=1, attention_heads=2),
    head=LowRank(rank=4),
    optimizer=AdamW(learning_rate=1e-2),
    budget=Steps({steps}, batch_size=8),
    axes={{"task.vocab_size": Choice(16, 64), "optimizer.learning_rate": Log(1e-3, 1e-1, points={points})}},
    replicates={replicates},
    evaluation=Evaluation(sequences=32, points=24),
)
"""


def study_text(trials: int, steps: int) -> str:
    """Return a study file of so many trials, of two vocabularies; raises SystemExit where that has no such grid."""
    for points in (5, 3, 4, 2):
        if trials % (2 * points) == 0:
            return STUDY.format(steps=steps, points=points, replicates=trials // (2 * points))
    raise SystemExit(f"--trials must be a multiple of 4, 6 or 10; not {trials}")
