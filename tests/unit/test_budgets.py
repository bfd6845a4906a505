"""Budgets in each unit, against counts made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from isoloss import (
    AdamW,
    Bytes,
    Coverage,
    Decoder,
    Flops,
    Linear,
    LowRank,
    Passes,
    Prepared,
    Size,
    SpamLang,
    Steps,
    Text,
    Tokens,
    Trial,
)
from isoloss.config.base import canonical_json

DATA = Prepared(
    name="web",
    digest="0123456789abcdef",
    documents=100,
    bytes=400_000,
    held_out_documents=1000,
    held_out_bytes=40_000,
    sizes=(
        Size(vocab_size=512, tokens=200_000, held_out_tokens=20_000),
        Size(vocab_size=4096, tokens=100_000, held_out_tokens=10_000),
    ),
)


def trial(budget: Any, vocab_size: int = 512, **changes: Any) -> Trial:
    parts = {
        "task": Text(data=DATA, vocab_size=vocab_size, sequence_length=16),
        "model": Decoder(width=8, depth=1, attention_heads=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3),
    }
    return Trial(budget=budget, **{**parts, **changes})


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        (Steps(7, batch_size=4), {512: 7, 4096: 7}),
        (Tokens(6400, batch_size=4), {512: 100, 4096: 100}),
        (Tokens(6401, batch_size=4), {512: 101, 4096: 101}),
        (Passes(2, batch_size=4), {512: 6250, 4096: 3125}),
        (Bytes(12_800, batch_size=4), {512: 100, 4096: 50}),  # 2 and 4 bytes a token
        (Coverage(25.0, batch_size=4), {512: 200, 4096: 1600}),  # every token counts as a draw
    ],
    ids=lambda value: value.label if hasattr(value, "label") else "",
)
def test_updates_by_hand(budget: Any, steps: dict[int, int]) -> None:
    for vocab_size, count in steps.items():
        assert (trial(budget, vocab_size).steps, trial(budget, vocab_size).batch_size) == (count, 4)


def test_equal_operations_cost_the_same_for_every_head() -> None:
    # Backbone 256 + 576 + 24 parameters, attention 2 * 8 * 16, head 8 V or 2 (V + 8); 6 operations each.
    for head, vocab_size, numbers in ((Linear(), 512, 4096), (Linear(), 4096, 32_768), (LowRank(rank=2), 512, 1040)):
        per_token = 6 * (856 + 256 + numbers)
        found = trial(Flops(1e9, batch_size=4), vocab_size, head=head)
        assert found.flops_per_token == per_token
        assert found.steps == math.ceil(1e9 / (per_token * 4 * 16))


@pytest.mark.parametrize("budget", [Bytes(1000, batch_size=4), Passes(1, batch_size=4)])
def test_budgets_of_text_need_a_text_of_known_size(budget: Any) -> None:
    with pytest.raises(ValidationError, match="needs a task of text"):
        trial(budget, task=SpamLang(vocab_size=8, sequence_length=4))
    with pytest.raises(ValidationError, match="prepare it, then write"):
        trial(budget, task=Text(data=Prepared(name="web"), vocab_size=512, sequence_length=16))
    assert trial(Tokens(64, batch_size=4), task=Text(data=Prepared(name="web"), vocab_size=5, sequence_length=16)).steps


def test_a_vocabulary_that_was_not_prepared_is_refused() -> None:
    with pytest.raises(ValidationError, match="vocab_size must be one of 512, 4096, for which 'web' was prepared, not"):
        trial(Steps(7, batch_size=4), 1024)


def test_budgets_survive_json() -> None:
    budgets = Tokens(11e9, batch_size=4), Bytes(1e6, batch_size=4), Passes(1, batch_size=2), Flops(1e9, batch_size=2)
    for budget in budgets:
        one = trial(budget)
        again = Trial.model_validate_json(canonical_json(one))
        assert (again, again.key) == (one, one.key)
