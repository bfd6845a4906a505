"""SpamLang: its floor, its draws and its coverage budgets."""

# B sequences, T positions, V vocabulary, M width

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isoloss import AdamW, Coverage, Decoder, Evaluation, Linear, LowRank, SpamLang, Steps, tasks
from isoloss.model.decoder import LanguageModel
from isoloss.study import Trial
from isoloss.tasks.spamlang import answers
from isoloss.train.loop import Training
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)

SCORED = ("repeats", "all")
MAPPING = ("identity", "shuffled")


def trial(task: SpamLang, **changes: Any) -> Trial:
    parts = {
        "model": Decoder(width=16, depth=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(10, batch_size=8),
        "evaluation": Evaluation(sequences=64),
    }
    return Trial(task=task, **{**parts, **changes})


@torch.no_grad()
def solve(model: LanguageModel, task: SpamLang) -> None:
    """Set a model's weights so that it knows every answer and nothing of the first symbol.

    Symbols are one-hot, the blocks add nothing, and a row of the head is large at the symbol that its own follows.
    The start token sits in a dimension that no row reads, so that all logits after it are equal.
    """
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.zero_()
    model.embedding.weight.copy_(torch.eye(*model.embedding.weight.shape))
    model.head.weight_VM[answers(task), torch.arange(task.vocab_size)] = 100.0


@pytest.mark.parametrize("mapping", MAPPING)
@pytest.mark.parametrize("scored", SCORED)
def test_a_model_that_knows_the_mapping_measures_the_floor(scored: str, mapping: str) -> None:
    task = SpamLang(vocab_size=12, sequence_length=5, scored=scored, mapping=mapping)
    training = Training(trial(task), Settings(), Workers())
    solve(training.bare_model, task)
    training.evaluate()
    floor = 0.0 if scored == "repeats" else math.log(12) / 5
    assert task.floor == pytest.approx(floor, abs=1e-15)
    assert training.curve["loss"][0] == pytest.approx(floor, abs=1e-6)
    assert training.curve["standard_error"][0] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("mapping", MAPPING)
@pytest.mark.parametrize("scored", SCORED)
def test_no_predictor_goes_below_the_floor(scored: str, mapping: str) -> None:
    """Over every sequence once, the best first guess is a distribution q with -mean_s ln q(answer of s) >= ln V.

    All that a causal predictor can know is one of V symbols or that a sequence starts, so a table of V + 1
    distributions is every predictor; gradient descent on that table must stop at the floor.
    """
    task = SpamLang(vocab_size=6, sequence_length=4, scored=scored, mapping=mapping)
    data = tasks.load(trial(task))
    once = {}
    for step in range(60):
        for inputs_T, targets_T in zip(*data.train(step), strict=True):
            once[int(targets_T[-1])] = (inputs_T, targets_T)
    assert set(once) == set(range(6))
    inputs_BT, targets_BT = (torch.stack(sequences) for sequences in zip(*once.values(), strict=True))
    table = torch.zeros(7, 6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([table], lr=0.5)
    for _ in range(300):
        logits = table[inputs_BT]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())
        assert float(loss.detach()) >= task.floor - 1e-12
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) == pytest.approx(task.floor, abs=1e-3)


@pytest.mark.parametrize("mapping", MAPPING)
def test_sequences_repeat_one_symbol_and_ask_for_what_follows_it(mapping: str) -> None:
    for scored, positions in (("repeats", 4), ("all", 5)):
        task = SpamLang(vocab_size=50, sequence_length=5, scored=scored, mapping=mapping)
        inputs_BT, targets_BT = tasks.load(trial(task)).train(0)
        assert task.positions == positions == inputs_BT.shape[1]
        symbols_B = inputs_BT[:, -1]
        if scored == "all":
            assert (inputs_BT[:, 0] == 50).all()
            inputs_BT = inputs_BT[:, 1:]
        assert (inputs_BT == symbols_B[:, None]).all()
        assert (targets_BT == answers(task)[symbols_B][:, None]).all()


def test_the_shuffled_mapping_is_one_fixed_permutation() -> None:
    """Fixed by V alone: no seed, replicate or cell changes what is to be learned."""
    seen: dict[int, int] = {}
    task = SpamLang(vocab_size=40, sequence_length=3, mapping="shuffled")
    for changes in ({}, {"seed": 5}, {"replicate": 3}, {"head": LowRank(rank=2)}):
        data = tasks.load(trial(task, **changes))
        for step in range(40):
            inputs_BT, targets_BT = data.train(step)
            for symbol, answer in zip(inputs_BT.flatten().tolist(), targets_BT.flatten().tolist(), strict=True):
                assert seen.setdefault(symbol, answer) == answer
    assert sorted(seen) == sorted(seen.values()) == list(range(40))
    # A random permutation leaves k symbols in place with probability 1 / (e k!), so 5 or more in 0.4 % of cases.
    assert sum(symbol == answer for symbol, answer in seen.items()) < 5


def test_symbols_are_drawn_evenly() -> None:
    """25,600 draws of 16 symbols: chi-squared of 15 degrees of freedom, whose 0.1 % and 99.9 % points are below."""
    data = tasks.load(trial(SpamLang(vocab_size=16, sequence_length=2), budget=Steps(100, batch_size=256)))
    drawn = torch.cat([data.train(step).inputs_BT[:, 0] for step in range(100)]).bincount(minlength=16).double()
    chi_squared = float(((drawn - 1600) ** 2 / 1600).sum())
    assert 3.48 < chi_squared < 37.7


def test_every_vocabulary_draws_at_the_same_quantiles() -> None:
    """floor(u V) for a common u: an eightfold vocabulary splits each symbol into eight."""
    small, large = (tasks.load(trial(SpamLang(vocab_size=v, sequence_length=3))) for v in (16, 128))
    for one, other in ((small.train(7), large.train(7)), (small.held_out().batch, large.held_out().batch)):
        assert torch.equal(one.inputs_BT, other.inputs_BT // 8)
        assert len(other.inputs_BT.unique()) > len(one.inputs_BT.unique()) or len(one.inputs_BT) < 16


def test_held_out_draws_are_not_training_draws() -> None:
    task = SpamLang(vocab_size=1_000_000, sequence_length=2)
    data = tasks.load(trial(task))
    train = {int(symbol) for step in range(10) for symbol in data.train(step).inputs_BT[:, 0]}
    held_out = {int(symbol) for symbol in data.held_out().batch.inputs_BT[:, 0]}
    assert len(train) == 80
    assert len(held_out) == 64
    assert not train & held_out  # 80 x 64 pairs meet by chance once in 195 seeds


@pytest.mark.parametrize(("vocab_size", "sequences"), [(64, 8), (256, 32), (1024, 128)])
def test_coverage_gives_every_symbol_its_draws(vocab_size: int, sequences: int) -> None:
    """37.5 draws of V symbols are 37.5 V sequences: 300 steps of 8, 32, 128; or batches of as many for 300 steps."""
    task = SpamLang(vocab_size=vocab_size, sequence_length=32)
    for budget in (Coverage(37.5, steps=300), Coverage(37.5, batch_size=sequences)):
        covered = trial(task, budget=budget)
        assert (covered.steps, covered.batch_size) == (300, sequences)
        assert covered.draws_per_symbol(covered.steps) == 37.5
        assert len(tasks.load(covered).train(0).inputs_BT) == sequences


def test_coverage_rounds_up_to_whole_steps_and_sequences() -> None:
    task = SpamLang(vocab_size=100, sequence_length=32)
    assert Coverage(1.0, steps=30).resolve(task, 1.0) == (30, 4)  # 100 / 30 = 3.33
    assert Coverage(1.0, batch_size=30).resolve(task, 1.0) == (4, 30)
    assert Coverage(0.3, steps=10).resolve(task, 1.0) == (
        10,
        3,
    )  # 0.3 x 100 is 30.000000000000004 in floats of some order
    assert Coverage(0.07, batch_size=7).resolve(task, 1.0) == (1, 7)  # 0.07 x 100 is 7.000000000000001


def test_the_papers_largest_setting_has_4_9_draws_per_symbol() -> None:
    """Murugan 2026: about 41e6 positions / (64 x 131,072); as 41e6 / 64 = 640,625 sequences."""
    task = SpamLang(vocab_size=131_072, sequence_length=64)
    assert trial(task, budget=Steps(640_625, batch_size=1)).draws_per_symbol(640_625) == pytest.approx(4.9, abs=0.02)


def test_tokens_are_the_scored_positions() -> None:
    for scored, tokens in (("repeats", 10 * 8 * 4), ("all", 10 * 8 * 5)):
        assert trial(SpamLang(vocab_size=9, sequence_length=5, scored=scored)).tokens(10) == tokens
