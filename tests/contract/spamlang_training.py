"""A short training of any head on SpamLang with 32 symbols."""

from __future__ import annotations

from typing import Any

from isoloss import AdamW, Decoder, Evaluation, SpamLang, Steps
from isoloss.study import Trial
from isoloss.train.loop import train
from isoloss.train.settings import Settings


def final_loss(head: Any) -> float:
    """Return the held-out loss in nats after 60 steps; an untrained model's is about ln 32 = 3.5."""
    trial = Trial(
        task=SpamLang(vocab_size=32, sequence_length=3),
        model=Decoder(width=16, depth=1, attention_heads=2),
        head=head,
        optimizer=AdamW(learning_rate=0.03),
        budget=Steps(60, batch_size=32),
        evaluation=Evaluation(sequences=64, points=4),
    )
    return train(trial, Settings()).curve.final_loss
