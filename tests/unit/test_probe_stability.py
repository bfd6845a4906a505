"""Attention logits, log Z and root mean squares, against loops and numpy."""

# B sequences, T positions, H attention heads, K key/value heads, C width of one head, M width

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isoloss import AdamW, Decoder, Linear, SpamLang, Steps
from isoloss.model.decoder import Attention, LanguageModel
from isoloss.probe import stability
from isoloss.probe.stability import GROUPS, largest_attention_logit, mean_log_z, root_mean_squares, update_rms
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED

torch.set_num_threads(1)


def language_model(kv_heads: int | None = 2, head: Any = Linear()) -> LanguageModel:  # noqa: B008
    model = Decoder(width=16, depth=2, attention_heads=4, kv_heads=kv_heads, initial_std=0.6, rope_theta=50.0)
    task = SpamLang(vocab_size=23, sequence_length=8)
    return LanguageModel(
        Trial(task=task, model=model, head=head, optimizer=AdamW(learning_rate=1.0), budget=Steps(1, batch_size=1))
    )


def tokens() -> Tensor:
    return torch.randint(23, (4, 7), generator=torch.Generator().manual_seed(0))


def turned(vector_C: np.ndarray, position: int, theta: float = 50.0) -> np.ndarray:
    """Su et al. 2021, eq. 15, each pair (i, i + C/2) as one complex number."""
    half = len(vector_C) // 2
    pairs = [complex(vector_C[i], vector_C[i + half]) for i in range(half)]
    moved = [pair * cmath.exp(1j * position * theta ** (-2 * i / (2 * half))) for i, pair in enumerate(pairs)]
    return np.array([pair.real for pair in moved] + [pair.imag for pair in moved])


def naive_attention(attention: Attention, x_BTM: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each sequence's largest logit of a pair that attends and of one that does not, and the output."""
    H, K, C = attention.heads, attention.kv_heads, attention.head_width
    x_BTM = x_BTM.double().numpy()
    weight_ACM = attention.inputs.weight.detach().double().numpy().reshape(H + 2 * K, C, x_BTM.shape[2])
    largest_B, future_B, mixed_BTHC = np.zeros(len(x_BTM)), np.zeros(len(x_BTM)), np.zeros((*x_BTM.shape[:2], H, C))
    for b, sequence_TM in enumerate(x_BTM):
        for h in range(H):
            query, key, value = weight_ACM[h], weight_ACM[H + h // (H // K)], weight_ACM[H + K + h // (H // K)]
            for t, asks_M in enumerate(sequence_TM):
                logits = [
                    turned(query @ asks_M, t) @ turned(key @ answers_M, s) / math.sqrt(C)
                    for s, answers_M in enumerate(sequence_TM)
                ]
                largest_B[b] = max(largest_B[b], *np.abs(logits[: t + 1]))
                future_B[b] = max(future_B[b], *np.abs(logits[t + 1 :]), 0)
                weights = np.exp(logits[: t + 1]) / np.exp(logits[: t + 1]).sum()
                mixed_BTHC[b, t, h] = weights @ (sequence_TM[: t + 1] @ value.T)
    return largest_B, future_B, mixed_BTHC.reshape(x_BTM.shape) @ attention.out.weight.detach().double().numpy().T


@pytest.mark.parametrize("kv_heads", [1, 2, None])
def test_the_largest_attention_logit_is_that_of_a_loop_over_all(
    kv_heads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs_BT = language_model(kv_heads), tokens()
    largest_B, future_B = np.zeros(len(inputs_BT)), np.zeros(len(inputs_BT))
    with torch.no_grad():
        x_BTM = model.embedding(inputs_BT)
        for block in model.blocks:
            normed_BTM = block.attention_norm(x_BTM)
            of_layer_B, future_of_layer_B, out_BTM = naive_attention(block.attention, normed_BTM)
            actual_BTM = block.attention(normed_BTM, model.rotation_2TC).numpy()
            np.testing.assert_allclose(actual_BTM, out_BTM, rtol=1e-4, atol=1e-4)  # the loop is the model's attention
            largest_B, future_B = np.maximum(largest_B, of_layer_B), np.maximum(future_B, future_of_layer_B)
            x_BTM = block(x_BTM, model.rotation_2TC)
    assert (future_B > 1.01 * largest_B).any()  # so that it matters which pairs count
    for size in (stability.CHUNK_BYTES, 4 * 4 * 7 * 2):  # all at once; then two queries of one sequence
        monkeypatch.setattr(stability, "CHUNK_BYTES", size)
        assert largest_attention_logit(model, inputs_BT) == pytest.approx(largest_B.max(), rel=1e-5)
        for sequence_T, largest in zip(inputs_BT, largest_B, strict=True):
            assert largest_attention_logit(model, sequence_T[None]) == pytest.approx(largest, rel=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
def test_every_layer_counts_and_logits_scale_with_queries_and_keys(layer: int) -> None:
    model, inputs_BT = language_model(), tokens()
    with torch.no_grad():
        model.blocks[layer].attention.inputs.weight[:24].mul_(10)  # queries of 4 heads and keys of 2, of 4 rows each
        before = largest_attention_logit(model, inputs_BT)
        model.blocks[layer].attention.inputs.weight[:24].mul_(2)
    assert largest_attention_logit(model, inputs_BT) == pytest.approx(4 * before, rel=1e-4)


def test_products_stay_float32_under_autocast() -> None:
    """bfloat16 queries and keys are off by 2^-9 each; a bfloat16 result would also have at most 8 binary digits."""
    model, inputs_BT = language_model(), tokens()
    exact = largest_attention_logit(model, inputs_BT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = largest_attention_logit(model, inputs_BT)
    assert under == pytest.approx(exact, rel=0.05)
    product = torch.tensor(under * 2)  # sqrt(C) = 2
    assert product.bfloat16().float() != product


def test_a_nan_is_returned_and_hooks_are_gone_whatever_happens() -> None:
    model, inputs_BT = language_model(), tokens()
    with pytest.raises(IndexError):
        largest_attention_logit(model, inputs_BT + 100)
    with torch.no_grad():
        model.embedding.weight[inputs_BT[0, -1]] = math.nan
    assert math.isnan(largest_attention_logit(model, inputs_BT))
    assert not any(module._forward_hooks for module in model.modules())


def test_log_z_is_averaged_over_scored_tokens() -> None:
    targets_N = torch.tensor([1, UNSCORED, 2, 0])
    assert mean_log_z(torch.tensor([1.5, 0.0, -2.0, 4.0]), targets_N) == pytest.approx(3.5 / 3, rel=1e-15)


@pytest.mark.parametrize("head", [Linear(), Linear(tied=True)], ids=["untied", "tied"])
def test_root_mean_squares_of_gradients_are_numpys(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stability, "NUMBERS_AT_ONCE", 100)
    model, inputs_BT = language_model(head=head), tokens()
    model(inputs_BT, inputs_BT).backward()
    found = root_mean_squares((name, parameter.grad) for name, parameter in model.named_parameters())
    blocks = list(model.blocks)
    members = {
        "embedding": [model.embedding.weight],
        "attention": [layer.weight for block in blocks for layer in (block.attention.inputs, block.attention.out)],
        "mlp": [layer.weight for block in blocks for layer in (block.mlp.inputs, block.mlp.out)],
        "norm": [norm.weight for block in blocks for norm in (block.attention_norm, block.mlp_norm)]
        + [model.norm.weight],
        "head": list(model.head.parameters()),
    }
    assert set(members) == set(GROUPS)
    assert sum(len(group) for group in members.values()) == len(list(model.parameters()))
    if not members["head"]:
        del members["head"]
    assert found.keys() == members.keys()
    for group, parameters in members.items():
        numbers = np.concatenate([parameter.grad.double().numpy().ravel() for parameter in parameters])
        assert found[group] == pytest.approx(math.sqrt(np.mean(numbers**2)), rel=1e-12), group


def test_squares_are_added_in_float64() -> None:
    """In float32 the ones are lost beside 1e8, the square of 1e4."""
    weight = torch.ones(5000)
    weight[0] = 1e4
    assert root_mean_squares([("norm.weight", weight)])["norm"] == pytest.approx(
        math.sqrt(100_004_999 / 5000), rel=1e-14
    )


def test_an_update_is_the_change_of_each_group() -> None:
    model = language_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        model.blocks[1].mlp.out.weight += 0.25  # 48 x 16 of the 2 x 3 x 48 x 16 weights of both MLPs
        model.norm.weight -= 0.5  # 16 of 5 x 16 gains
    found = update_rms(before, dict(model.named_parameters()))
    expected = {"embedding": 0.0, "attention": 0.0, "head": 0.0, "mlp": 0.25 / math.sqrt(6), "norm": 0.5 / math.sqrt(5)}
    assert found == pytest.approx(expected, rel=1e-6)


def test_names_that_do_not_belong_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'module\.norm\.weight' is no parameter"):
        root_mean_squares([("module.norm.weight", torch.ones(2))])
    with pytest.raises(ValueError, match=r"differ in name: head\.b"):
        update_rms({"norm.weight": torch.ones(2)}, {"norm.weight": torch.ones(2), "head.b": torch.ones(2)})
