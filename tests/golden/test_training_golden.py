"""The decoder, its loss and whole optimizer steps against the float64 reference of ``reference.py``."""

# B sequences, T positions, V vocabulary, M width

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference import AdamW as ReferenceAdamW
from reference import Shape, Weights, gradients, losses

from isoloss import AdamW, Decoder, Evaluation, Linear, LowRank, SpamLang, Steps, WarmupStableDecay
from isoloss.model.decoder import LanguageModel
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED, Batch, HeldOut
from isoloss.train.held_out import Meter
from isoloss.train.loop import Training
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)

HEADS = {"linear": Linear(), "tied": Linear(tied=True), "low_rank": LowRank(rank=3)}

FACTORS = (0.5, 1.0, 1.0, 2 / 3, 1 / 3)
"""The schedule below, by hand: of 5 steps, 2 warm up (1/2, 2/2) and 2 decay (2/3, 1/3, and 0 after the last)."""

SCHEDULE = WarmupStableDecay(warmup=0.4, decay=0.4)


def trial(**changes: Any) -> Trial:
    parts = {
        "task": SpamLang(vocab_size=5, sequence_length=4),
        "model": Decoder(width=8, depth=2, attention_heads=2, kv_heads=1, mlp_ratio=1.0, initial_std=0.4),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=0.02, weight_decay=0.3, epsilon=1e-3, clip_norm=1e9, schedule=SCHEDULE),
        "budget": Steps(5, batch_size=3),
        "evaluation": Evaluation(sequences=4, points=4),
    }
    return Trial(**{**parts, **changes})


def shape(config: Decoder) -> Shape:
    heads = config.attention_heads
    return Shape(config.depth, heads, config.kv_heads or heads, config.rope_theta, config.norm_epsilon)


def weights(model: LanguageModel) -> Weights:
    """The model's weights in float64, its fused matrices taken apart."""
    state = {name: value.detach().numpy().astype(np.float64) for name, value in model.state_dict().items()}
    heads, kv_heads, width = (
        model.blocks[0].attention.heads,
        model.blocks[0].attention.kv_heads,
        model.blocks[0].attention.head_width,
    )
    rows = (heads * width, (heads + kv_heads) * width)
    out: Weights = {"embedding": state["embedding.weight"], "final_norm": state["norm.weight"]}
    for i in range(len(model.blocks)):
        block = f"blocks.{i}."
        query, key, value = np.split(state[f"{block}attention.inputs.weight"], rows)
        gate, up = np.split(state[f"{block}mlp.inputs.weight"], 2)
        named = {"query": query, "key": key, "value": value, "output": state[f"{block}attention.out.weight"]}
        named |= {"gate": gate, "up": up, "down": state[f"{block}mlp.out.weight"]}
        named |= {name: state[f"{block}{name}.weight"] for name in ("attention_norm", "mlp_norm")}
        out |= {f"{i}.{name}": matrix for name, matrix in named.items()}
    names = {"head.weight_VM": "head", "head.out_VD": "head_out", "head.in_DM": "head_in"}
    return out | {new: state[old] for old, new in names.items() if old in state}


class RandomTokens:
    """Batches of unrelated tokens, so that attention and positions matter, which SpamLang's repeats hide."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def train(self, step: int, rank: int = 0, count: int = 1) -> Batch:
        task, generator = self.trial.task, np.random.default_rng(step)
        size = (self.trial.batch_size, task.positions)
        inputs_BT = generator.integers(task.input_vocab_size, size=size)
        targets_BT = generator.integers(task.vocab_size, size=size)
        return Batch(torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT))


def start(trial: Trial) -> Training:
    """Training whose norms' gains are no longer all 1, so that their place in the formulas can be told."""
    training = Training(trial, Settings(), Workers())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in training.parameters:
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return training


def follow(training: Training, steps: int) -> tuple[Weights, Weights, ReferenceAdamW]:
    """Take the steps in both; return the weights before, the reference's weights after, and its optimizer."""
    trial, config = training.trial, training.trial.optimizer
    before = expected = weights(training.bare_model)
    optimizer = ReferenceAdamW(config.beta1, config.beta2, config.epsilon, config.weight_decay, config.clip_norm)
    for step in range(steps):
        inputs_BT, targets_BT = (tensor.numpy() for tensor in training.data.train(step))

        def loss(w: Weights, inputs_BT: np.ndarray = inputs_BT, targets_BT: np.ndarray = targets_BT) -> np.ndarray:
            return losses(w, inputs_BT, targets_BT, shape(trial.model), trial.task.vocab_size).mean((-2, -1))

        gradient = gradients(expected, loss)
        expected = optimizer.update(expected, gradient, config.learning_rate * FACTORS[step])
        training.update()
    return before, expected, optimizer


def largest_error(training: Training, before: Weights, expected: Weights) -> float:
    """The largest error of any weight, as a share of the largest change of its matrix."""
    after = weights(training.bare_model)
    assert after.keys() == expected.keys()
    return max(float(np.abs(after[n] - expected[n]).max() / np.abs(expected[n] - before[n]).max()) for n in expected)


@pytest.mark.parametrize("scored", ["repeats", "all"])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_every_positions_loss_is_the_references(head: Linear | LowRank, scored: str) -> None:
    task = SpamLang(vocab_size=7, sequence_length=6, scored=scored)
    model = Decoder(
        width=16, depth=2, attention_heads=4, kv_heads=1, rope_theta=50.0, initial_std=0.5, norm_epsilon=0.1
    )
    training = start(trial(task=task, model=model, head=head))
    inputs_BT, targets_BT = RandomTokens(training.trial).train(0)
    with torch.no_grad():
        loss_BT = training.bare_model.loss(inputs_BT, targets_BT).numpy()
    w = weights(training.bare_model)
    expected_BT = losses(w, inputs_BT.numpy(), targets_BT.numpy(), shape(model), 7)
    np.testing.assert_allclose(loss_BT, expected_BT, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_queries_share_keys_and_values_as_the_reference_groups_them(kv_heads: int) -> None:
    model = Decoder(width=16, depth=1, attention_heads=4, kv_heads=kv_heads, initial_std=0.5)
    training = start(trial(model=model))
    inputs_BT, targets_BT = RandomTokens(training.trial).train(0)
    with torch.no_grad():
        loss_BT = training.bare_model.loss(inputs_BT, targets_BT).numpy()
    expected_BT = losses(weights(training.bare_model), inputs_BT.numpy(), targets_BT.numpy(), shape(model), 5)
    np.testing.assert_allclose(loss_BT, expected_BT, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_three_steps_are_the_references(head: Linear | LowRank) -> None:
    training = start(trial(head=head))
    training.data = RandomTokens(training.trial)
    before, expected, _ = follow(training, 3)
    assert largest_error(training, before, expected) < 2e-5


def test_a_clipped_step_is_the_references() -> None:
    # With epsilon far above the gradients, Adam's step is proportional to them, so that clipping shows.
    optimizer = AdamW(learning_rate=1000.0, epsilon=10.0, clip_norm=0.05, schedule=SCHEDULE)
    training = start(trial(optimizer=optimizer))
    training.data = RandomTokens(training.trial)
    before, expected, reference = follow(training, 1)
    assert reference.norms[0] > 10 * optimizer.clip_norm
    assert largest_error(training, before, expected) < 2e-5
    assert float(training.pending[0][1]) == pytest.approx(reference.norms[0], rel=1e-5)


def test_steps_on_spamlang_with_its_start_token_are_the_references() -> None:
    # The published settings of AdamW: epsilon 1e-8. A gradient of float32's rounding noise then moves a weight by
    # up to the learning rate, so that matrices are compared as a whole.
    task = SpamLang(vocab_size=5, sequence_length=3, scored="all", mapping="shuffled")
    training = start(trial(task=task, optimizer=AdamW(learning_rate=0.01, weight_decay=0.1, schedule=SCHEDULE)))
    before, expected, _ = follow(training, 5)
    after = weights(training.bare_model)
    for name, value in expected.items():
        assert np.linalg.norm(after[name] - value) < 1e-4 * np.linalg.norm(value - before[name]), name


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_weights_of_unseen_tokens_stay_where_they_are(head: Linear | LowRank) -> None:
    """Without weight decay, an embedding that no token reads and no logit uses has no gradient: Adam leaves it."""
    task = SpamLang(vocab_size=16, sequence_length=4)
    training = start(trial(task=task, head=head, optimizer=AdamW(learning_rate=0.01)))
    training.data = RandomTokens(training.trial)
    unseen = sorted(set(range(16)) - set(training.data.train(0).inputs_BT.unique().tolist()))
    assert unseen
    before = training.bare_model.embedding.weight.detach().clone()
    training.update()
    moved = (training.bare_model.embedding.weight[unseen] != before[unseen]).any()
    assert bool(moved) == (head == HEADS["tied"])  # a tied embedding also holds the logits of every symbol


def test_unscored_positions_leave_the_mean() -> None:
    training = start(trial())
    inputs_BT, targets_BT = RandomTokens(training.trial).train(0)
    masked_BT = targets_BT.clone()
    masked_BT[:, 0] = UNSCORED

    class Masked(RandomTokens):
        def train(self, step: int, rank: int = 0, count: int = 1) -> Batch:
            return Batch(inputs_BT, masked_BT)

    training.data = Masked(training.trial)
    w = weights(training.bare_model)
    expected_BT = losses(w, inputs_BT.numpy(), targets_BT.numpy(), shape(training.trial.model), 5)
    training.update()
    assert float(training.pending[0][0]) == pytest.approx(expected_BT[:, 1:].mean(), rel=1e-5)


def test_the_held_out_loss_and_its_standard_error_are_the_references() -> None:
    """Over sequences, since positions of one sequence are not independent: s / sqrt(n), s with n - 1 below."""
    training = start(trial())
    batch = RandomTokens(training.trial).train(0)
    held = HeldOut(batch, torch.arange(len(batch.inputs_BT))[:, None].expand_as(batch.inputs_BT))
    training.meter = Meter(held, 5, Workers(), torch.device("cpu"))
    inputs_BT, targets_BT = (tensor.numpy() for tensor in batch)
    loss_B = losses(weights(training.bare_model), inputs_BT, targets_BT, shape(training.trial.model), 5).mean(1)
    training.evaluate()
    mean = sum(loss_B) / 3
    error = (sum((loss - mean) ** 2 for loss in loss_B) / 2 / 3) ** 0.5
    assert training.curve["loss"] == pytest.approx([mean], rel=1e-5)
    assert training.curve["standard_error"] == pytest.approx([error], rel=1e-4)
