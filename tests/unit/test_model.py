"""The model's size and its state at initialisation."""

# B sequences, T positions, V vocabulary

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isoloss import AdamW, Decoder, Linear, LowRank, SpamLang, Steps
from isoloss.model.decoder import LanguageModel, rotary, rotate
from isoloss.study import Trial

torch.set_num_threads(1)


def trial(**changes: Any) -> Trial:
    parts = {
        "task": SpamLang(vocab_size=11, sequence_length=6),
        "model": Decoder(width=16, depth=2, attention_heads=2),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(1, batch_size=1),
    }
    return Trial(**{**parts, **changes})


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def by_hand(depth: int, width: int, heads: int, kv_heads: int, mlp: int) -> int:
    """Query and output, key and value, gate and up and down, two gains a block; one gain after the last."""
    kv_width = width // heads * kv_heads
    return depth * (2 * width**2 + 2 * width * kv_width + 3 * width * mlp + 2 * width) + width


def test_smollm2s_backbone_has_the_published_shape_and_size() -> None:
    assert by_hand(depth=30, width=576, heads=9, kv_heads=3, mlp=1536) == 106_203_456
    shape = Decoder.smollm2_135m()
    assert (shape.depth, shape.width, shape.attention_heads, shape.kv_heads, shape.mlp_width) == (30, 576, 9, 3, 1536)
    assert shape.parameters == 106_203_456


def test_smollm2_with_its_own_vocabulary_has_the_published_134_515_008_parameters() -> None:
    """SmolLM2-135M ties 49,152 rows of width 576 to its head: 28,311,552 beside the backbone."""
    task = SpamLang(vocab_size=49_152, sequence_length=4)
    smollm2 = trial(task=task, model=Decoder.smollm2_135m(), head=Linear(tied=True))
    assert smollm2.parameters == 134_515_008


def test_six_layers_of_llama3_have_their_size() -> None:
    # 218,112,000 a layer, as in the 8,030,261,248 of Llama-3-8B = 32 layers + gain + 2 x 128,256 x 4,096.
    assert 32 * 218_112_000 + 4096 + 2 * 128_256 * 4096 == 8_030_261_248
    assert by_hand(depth=6, width=4096, heads=32, kv_heads=8, mlp=14_336) == 6 * 218_112_000 + 4096
    assert Decoder.llama3_6_layers().parameters == 1_308_676_096


@pytest.mark.parametrize("scored", ["repeats", "all"])
@pytest.mark.parametrize("head", [Linear(), Linear(tied=True), LowRank(rank=3)], ids=lambda head: head.label)
@pytest.mark.parametrize("kv_heads", [1, 2, None])
def test_the_built_model_has_the_declared_parameters(head: Any, scored: str, kv_heads: int | None) -> None:
    task = SpamLang(vocab_size=11, sequence_length=6, scored=scored)
    model = Decoder(width=16, depth=2, attention_heads=2, kv_heads=kv_heads)
    declared = trial(task=task, model=model, head=head)
    embedding = 16 * (11 + (scored == "all"))
    of_head = {"linear": 0 if getattr(head, "tied", False) else 11 * 16, "low_rank": 3 * (11 + 16)}[head.kind]
    # 8/3 x 16 = 42.7, rounded up to a multiple of 8
    assert declared.parameters == embedding + by_hand(2, 16, 2, kv_heads or 2, mlp=48) + of_head
    assert count(LanguageModel(declared)) == declared.parameters


@pytest.mark.parametrize("model", [Decoder.smollm2_135m(), Decoder.llama3_6_layers()], ids=["smollm2", "llama3"])
def test_the_published_shapes_build(model: Decoder) -> None:
    declared = trial(task=SpamLang(vocab_size=1024, sequence_length=6), model=model, head=LowRank(rank=32))
    # Random numbers are not drawn for tensors without storage, which is what lets this build in no time.
    with torch.device("meta"):
        assert count(LanguageModel(declared)) == declared.parameters


@pytest.mark.parametrize("vocab_size", [100, 1000, 4096])
@pytest.mark.parametrize("scored", ["repeats", "all"])
def test_the_initial_loss_of_a_linear_head_is_the_uniform_distributions(vocab_size: int, scored: str) -> None:
    task = SpamLang(vocab_size=vocab_size, sequence_length=6, scored=scored)
    model = LanguageModel(trial(task=task))
    symbols_B = torch.arange(64) * vocab_size // 64
    inputs_BT = symbols_B[:, None].repeat(1, task.positions)
    with torch.no_grad():
        loss = float(model.loss(inputs_BT, inputs_BT).mean())
    assert loss == pytest.approx(math.log(vocab_size), rel=0.01)


def test_initial_weights_have_the_declared_spread() -> None:
    """N(0, s), and s / sqrt(2 depth) where a block adds to the residual stream."""
    model = Decoder(width=128, depth=8, initial_std=0.05)
    weights = LanguageModel(trial(model=model)).state_dict()
    for name, weight in weights.items():
        if weight.ndim == 1:
            assert bool((weight == 1).all()), name
        else:
            expected = 0.05 / 4 if name.endswith(("attention.out.weight", "mlp.out.weight")) else 0.05
            assert float(weight.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * weight.numel())), name
            assert abs(float(weight.mean())) < 5 * expected / math.sqrt(weight.numel()), name


def test_a_backbone_is_the_same_in_every_cell_and_another_in_every_replicate() -> None:
    task = SpamLang(vocab_size=99, sequence_length=9, scored="all")
    cells = (trial(), trial(task=task), trial(head=LowRank(rank=2)), trial(optimizer=AdamW(learning_rate=9.0)))
    torch.manual_seed(5)
    one, *others = (LanguageModel(cell).blocks.state_dict() for cell in cells)
    for other in others:
        assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    replicate = LanguageModel(trial(replicate=1)).blocks.state_dict()
    assert not any(torch.equal(weight, replicate[name]) for name, weight in one.items() if weight.ndim > 1)


def test_no_two_matrices_start_equal() -> None:
    matrices = [weight for weight in LanguageModel(trial()).parameters() if weight.ndim > 1]
    starts = [tuple(weight.flatten()[:4].tolist()) for weight in matrices]
    assert len(set(starts)) == len(starts)


def test_a_position_reads_nothing_that_comes_after_it() -> None:
    model = LanguageModel(trial(model=Decoder(width=16, depth=2, attention_heads=2, initial_std=0.5)))
    inputs_BT = torch.tensor([[1, 2, 3, 4, 5]])
    changed_BT = torch.tensor([[1, 2, 3, 9, 10]])
    with torch.no_grad():
        before, after = model.hidden(inputs_BT), model.hidden(changed_BT)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:], atol=0.1)


def test_rotary_attention_depends_on_distance_alone() -> None:
    """Su et al. 2021, eq. 14: <R_m q, R_n k> is a function of q, k and m - n."""
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = rotary(20, 8, 100.0).double()
    turned = [rotate(vector.expand(1, 1, 20, 8), rotation)[0, 0] for vector in (query, key)]
    score = turned[0] @ turned[1].T
    for distance in range(-15, 16):
        along = score.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-6)
    assert float(score.diagonal(0)[0]) == pytest.approx(float(query @ key), abs=1e-6)
    assert float(score[0].std()) > 0.1
