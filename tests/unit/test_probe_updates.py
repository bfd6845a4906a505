"""The paper's own quantities: contexts, the bound on any update's distance, and the first-order update itself."""

# B sequences, T positions, N tokens, V vocabulary, D columns of the last matrix, C distinct contexts

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isoloss import AdamW, Decoder, Linear, SpamLang, Steps
from isoloss.probe import updates
from isoloss.probe.contexts import context_ids, unique_continuations
from isoloss.probe.updates import by_context, first_order_update, gradient_blocks, gram, tail_bound
from isoloss.study import Trial
from isoloss.tasks import load
from isoloss.tasks.base import UNSCORED

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 7 symbols for 60 tokens, so that the last is ragged."""
    monkeypatch.setattr(updates, "BLOCK_BYTES", 8 * 60 * 7)


# --- contexts


def text(vocab_size: int = 4, shape: tuple[int, int] = (30, 9)) -> tuple[Tensor, Tensor]:
    """Tokens so few that contexts come back, a fifth of them not scored."""
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(vocab_size, (shape[0], shape[1] + 1), generator=generator)
    unscored_BT = torch.rand(shape, generator=generator) < 0.2
    return tokens_BT[:, :-1], tokens_BT[:, 1:].masked_fill(unscored_BT, UNSCORED)


def contexts_by_dictionary(inputs_BT: Tensor, targets_BT: Tensor, length: int | None) -> list[tuple[Any, int]]:
    found = []
    for row, targets in zip(inputs_BT.tolist(), targets_BT.tolist(), strict=True):
        for place, target in enumerate(targets):
            if target != UNSCORED:
                start = 0 if length is None else max(0, place + 1 - length)
                found.append((tuple(row[start : place + 1]), target))
    return found


@pytest.mark.parametrize("length", [None, 1, 2, 3, 8, 9, 50])
def test_contexts_are_those_of_a_dictionary(length: int | None) -> None:
    inputs_BT, targets_BT = text()
    pairs = contexts_by_dictionary(inputs_BT, targets_BT, length)
    followers, seen = defaultdict(set), defaultdict(int)
    for context, target in pairs:
        followers[context].add(target)
        seen[context] += 1
    unique = [context for context, after in followers.items() if len(after) == 1]
    counts = unique_continuations(inputs_BT, targets_BT, length)
    assert counts.distinct == len(followers)
    assert counts.unique == len(unique)
    assert counts.distinct_next == len(set.union(set(), *(followers[context] for context in unique)))
    assert counts.repeated_share == pytest.approx(sum(n > 1 for n in seen.values()) / len(seen), abs=1e-15)
    # Equal numbers for equal contexts and for no others: the pairs of a number and a context are as many as contexts.
    numbers = context_ids(inputs_BT, targets_BT, length).tolist()
    assert sorted(set(numbers)) == list(range(len(followers)))
    assert len(set(zip(numbers, (context for context, _ in pairs), strict=True))) == len(followers)


@pytest.mark.parametrize("scored", ["repeats", "all"])
def test_spamlangs_contexts_are_its_symbols_at_each_position(scored: str) -> None:
    task = SpamLang(vocab_size=50, sequence_length=6, scored=scored, mapping="shuffled")
    batch = load(
        Trial(
            task=task,
            model=Decoder(width=8, depth=1),
            head=Linear(),
            optimizer=AdamW(learning_rate=1.0),
            budget=Steps(1, batch_size=100),
        )
    ).train(0)
    counts = unique_continuations(*batch)
    drawn, times = batch.targets_BT[:, 0].unique(return_counts=True)
    symbols, again = len(drawn), int((times > 1).sum())
    assert symbols < 50
    assert again > 5
    if scored == "repeats":  # 5 positions are scored, each after the symbol
        assert (counts.distinct, counts.unique) == (5 * symbols, 5 * symbols)
        assert counts.repeated_share == pytest.approx(again / symbols)
    else:  # the start token is one more context, and anything follows it
        assert (counts.distinct, counts.unique) == (5 * symbols + 1, 5 * symbols)
    assert counts.distinct_next == symbols
    assert counts.ideal_rank(50) == min(5 * symbols, 49) == 49
    assert counts.ideal_rank(1000) == 5 * symbols


def test_contexts_need_a_scored_position_and_a_length() -> None:
    inputs_BT, targets_BT = text()
    with pytest.raises(ValueError, match="no position is scored"):
        unique_continuations(inputs_BT, torch.full_like(targets_BT, UNSCORED))
    with pytest.raises(ValueError, match="length must be at least 1, not 0"):
        unique_continuations(inputs_BT, targets_BT, 0)


# --- the head whose updates are measured, and its P - Y in numpy


def head(columns: int = 4, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return input_ND, weight_VD, targets_N and bias_V of 60 tokens and 45 symbols."""
    generator = torch.Generator().manual_seed(columns)
    input_ND = torch.randn(60, columns, generator=generator)
    weight_VD = scale * torch.randn(45, columns, generator=generator)
    targets_N = torch.randint(45, (60,), generator=generator)
    targets_N[0], targets_N[1] = 0, 44
    return input_ND, weight_VD, targets_N, torch.randn(45, generator=generator)


def gradient_by_definition(input_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None) -> np.ndarray:
    input_ND, weight_VD = (x.numpy().astype(np.longdouble) for x in (input_ND, weight_VD))
    exponential_NV = np.exp(input_ND @ weight_VD.T + (0 if bias_V is None else bias_V.numpy().astype(np.longdouble)))
    probability_NV = exponential_NV / exponential_NV.sum(-1, keepdims=True)
    return (probability_NV - np.eye(len(weight_VD))[targets_N.numpy()]).astype(float)


@pytest.mark.parametrize("biased", [False, True])
def test_the_blocks_are_p_minus_y(biased: bool) -> None:
    *tokens, bias_V = head()
    arguments = (*tokens, bias_V if biased else None)
    blocks = list(gradient_blocks(*arguments))
    assert [block.shape for block in blocks] == [(60, 7)] * 6 + [(60, 3)]
    np.testing.assert_allclose(torch.cat(blocks, 1).numpy(), gradient_by_definition(*arguments), rtol=1e-12, atol=1e-15)


def test_a_learnt_tokens_gradient_keeps_its_digits() -> None:
    """Two symbols with logits +-a: 1 - p_y = 1/(1 + e^2a), which is 4e-27 at a = 30, where 1 - p_y in float64 is 0."""
    weight_VD, input_ND = torch.tensor([[1.0], [-1.0]]), torch.tensor([[30.0], [-3.0]])
    gradient_NV = torch.cat(list(gradient_blocks(input_ND, weight_VD, torch.tensor([0, 1]))), 1)
    expected = [1 / (1 + math.exp(60)), 1 / (1 + math.exp(6))]
    np.testing.assert_allclose(gradient_NV.numpy(), [[-expected[0], expected[0]], [expected[1], -expected[1]]], 1e-13)


def test_an_unscored_token_is_refused() -> None:
    input_ND, weight_VD, targets_N, _ = head()
    targets_N[3] = UNSCORED
    with pytest.raises(ValueError, match="must be scored"):
        first_order_update(input_ND, weight_VD, targets_N)


# --- Proposition 2.6


@pytest.mark.parametrize("columns", [1, 4, 10, 29, 30, 100])
def test_the_bound_is_the_tail_of_the_singular_values(columns: int) -> None:
    arguments = head()
    gradient_NV = gradient_by_definition(*arguments)
    values = np.linalg.svd(gradient_NV, compute_uv=False)
    expected = math.sqrt((values[2 * columns :] ** 2).sum() / (values**2).sum())
    # The 45 columns of P - Y sum to 0, so from rank 44 on nothing is left but the rounding of a Gram: sqrt(1e-16).
    assert tail_bound(gram(gradient_blocks(*arguments)), columns) == pytest.approx(expected, rel=1e-9, abs=3e-7)
    assert tail_bound(gram([torch.from_numpy(gradient_NV)]), columns) == pytest.approx(expected, rel=1e-9, abs=3e-7)
    assert (expected > 0.1) == (columns <= 10)


def test_at_equal_counts_the_bound_of_a_uniform_p_has_a_closed_form() -> None:
    """With n tokens of each of k symbols, K = n (I - 11ᵀ/V) on k dimensions: n, k - 1 times, and once n (1 - k/V)."""
    n, k, V, D = 6, 10, 45, 3
    targets_N = torch.arange(k).repeat(n)
    gram_NN = gram(gradient_blocks(torch.zeros(n * k, D), torch.zeros(V, D), targets_N))
    expected = math.sqrt((k - 2 * D - k / V) / (k - k / V))
    assert tail_bound(gram_NN, D) == pytest.approx(expected, rel=1e-12)


def test_at_initialisation_the_bound_follows_from_counts_of_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """For uniform p the s_i² are the counts n_v, up to the 1/V that p takes from each."""
    monkeypatch.setattr(updates, "BLOCK_BYTES", 2**22)
    V, D, N = 3000, 8, 400
    weights_V = 1 / torch.arange(1, V + 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    targets_N = weights_V.multinomial(N, replacement=True, generator=generator)
    input_ND = torch.randn(N, D, generator=generator)
    weight_VD = 0.02 * torch.randn(V, D, generator=generator)
    counts = targets_N.bincount().sort(descending=True).values
    expected = math.sqrt(float(counts[2 * D :].sum()) / N)
    assert 0.5 < expected < 0.8
    assert tail_bound(gram(gradient_blocks(input_ND, weight_VD, targets_N)), D) == pytest.approx(expected, rel=2e-3)


def test_rows_by_context_are_p_minus_the_empirical_distribution() -> None:
    """Tokens of one whole prefix have one hidden state, so one row p - ñ, with ñ counted here symbol by symbol."""
    input_ND, weight_VD, targets_N, bias_V = head()
    generator = torch.Generator().manual_seed(3)
    context_N = torch.cat([torch.arange(25), torch.randint(25, (35,), generator=generator)])
    input_ND = input_ND[context_N]
    rows_CV = np.zeros((25, 45))
    gradient_NV = gradient_by_definition(input_ND, weight_VD, targets_N, bias_V)
    for context in range(25):
        of_context = (context_N == context).numpy()
        probability_V = gradient_NV[of_context][0] + np.eye(45)[targets_N[of_context][0]]
        rows_CV[context] = probability_V - np.bincount(targets_N[of_context], minlength=45) / of_context.sum()
    gram_CC = by_context(gram(gradient_blocks(input_ND, weight_VD, targets_N, bias_V)), context_N)
    np.testing.assert_allclose(gram_CC.numpy(), rows_CV @ rows_CV.T, rtol=1e-10, atol=1e-12)
    values = np.linalg.svd(rows_CV, compute_uv=False)
    assert tail_bound(gram_CC, 4) == pytest.approx(math.sqrt((values[8:] ** 2).sum() / (values**2).sum()), rel=1e-10)


# --- the first-order update


@pytest.mark.parametrize("scale", [1e-3, 1.0, 5.0])
@pytest.mark.parametrize("biased", [False, True])
def test_the_update_is_the_explicit_matrix(scale: float, biased: bool) -> None:
    input_ND, weight_VD, targets_N, bias_V = head(scale=scale)
    arguments = (input_ND, weight_VD, targets_N, bias_V if biased else None)
    gradient_NV = gradient_by_definition(*arguments)
    h, w = input_ND.double().numpy(), weight_VD.double().numpy()
    change_NV = -(gradient_NV @ w @ w.T + h @ h.T @ gradient_NV)
    update = first_order_update(*arguments)
    expected = np.linalg.svd(change_NV, compute_uv=False)
    np.testing.assert_allclose(update.singular_values.numpy(), expected[:8], rtol=1e-9, atol=1e-9 * expected[0])
    assert update.rank == np.linalg.matrix_rank(change_NV, rtol=4 * 2.0**-24) == 8
    cosine = -(change_NV * gradient_NV).sum() / np.linalg.norm(change_NV) / np.linalg.norm(gradient_NV)
    assert update.cosine == pytest.approx(cosine, rel=1e-10)


def test_a_learnt_samples_update_keeps_its_small_singular_values() -> None:
    """At 1 - p_y of about 1e-9 the columns G W are that much smaller than H; squared, they would vanish beside it."""
    input_ND, weight_VD, _, bias_V = head()
    targets_N = torch.zeros(60, dtype=torch.long)
    bias_V[0] = 26.0
    gradient_NV = gradient_by_definition(input_ND, weight_VD, targets_N, bias_V)
    assert 1e-11 < np.median(-gradient_NV[:, 0]) < 1e-8
    h, w = input_ND.double().numpy(), weight_VD.double().numpy()
    expected = np.linalg.svd(gradient_NV @ w @ w.T + h @ h.T @ gradient_NV, compute_uv=False)[:8]
    update = first_order_update(input_ND, weight_VD, targets_N, bias_V)
    np.testing.assert_allclose(update.singular_values.numpy(), expected, rtol=1e-6)
    assert update.rank == 8


def test_the_update_is_what_a_small_step_does_to_the_logits() -> None:
    """(H - η dH)(W - η dW)ᵀ - H Wᵀ over η, by autograd's gradients, in the limit of small η."""
    input_ND, weight_VD, targets_N, bias_V = (x.double() if x.is_floating_point() else x for x in head())
    input_ND.requires_grad_()
    weight_VD.requires_grad_()
    loss = torch.nn.functional.cross_entropy(input_ND @ weight_VD.T + bias_V, targets_N, reduction="sum")
    loss.backward()
    step = 1e-6
    with torch.no_grad():
        moved_NV = (input_ND - step * input_ND.grad) @ (weight_VD - step * weight_VD.grad).T
        change_NV = (moved_NV - input_ND @ weight_VD.T) / step
    update = first_order_update(input_ND.detach(), weight_VD.detach(), targets_N, bias_V)
    expected = torch.linalg.svdvals(change_NV)[:8]
    torch.testing.assert_close(update.singular_values, expected, rtol=1e-3, atol=1e-4)


def test_the_rank_of_the_update_falls_with_that_of_its_factors() -> None:
    """W of rank 1 and W-updates Gᵀ H of rank 2, H having no more: 3 in all, of the 8 that 4 columns allow."""
    input_ND, weight_VD, targets_N, _ = head()
    input_ND[:, 2:] = 0
    weight_VD[:] = torch.outer(weight_VD[:, 0], torch.tensor([1.0, 2.0, 3.0, 4.0]))
    update = first_order_update(input_ND, weight_VD, targets_N)
    assert update.rank == 3
    assert len(update.singular_values) == 8


@pytest.mark.parametrize("columns", [1, 2, 4, 8])
@pytest.mark.parametrize("scale", [0.02, 2.0])
def test_no_step_comes_closer_than_the_bound(columns: int, scale: float) -> None:
    """min over η of ||G - η ΔZ|| / ||G|| is sqrt(1 - cosine²), and ΔZ is of rank 2D."""
    arguments = head(columns, scale)
    bound = tail_bound(gram(gradient_blocks(*arguments)), columns)
    cosine = first_order_update(*arguments).cosine
    assert 0 < cosine < 1
    assert 0.1 < bound < math.sqrt(1 - cosine**2)


def test_under_autocast_figures_stay_those_of_float64() -> None:
    arguments = head()
    apart = first_order_update(*arguments), tail_bound(gram(gradient_blocks(*arguments)), 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = first_order_update(*arguments), tail_bound(gram(gradient_blocks(*arguments)), 4)
    assert torch.equal(under[0].singular_values, apart[0].singular_values)
    assert (under[0].cosine, under[1]) == (apart[0].cosine, apart[1])


class Largest(TorchDispatchMode):
    """Notes the most numbers in one tensor that an operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            self.numbers = max(self.numbers, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return result


def test_no_matrix_of_tokens_by_symbols_is_made() -> None:
    """A block is 7 symbols of 60 tokens; the largest tensor is the N x N Gram, while N x V has 18,000 numbers."""
    generator = torch.Generator().manual_seed(0)
    input_ND, weight_VD = torch.randn(60, 4, generator=generator), torch.randn(300, 4, generator=generator)
    targets_N = torch.randint(300, (60,), generator=generator)
    with Largest() as largest:
        first_order_update(input_ND, weight_VD, targets_N)
    assert largest.numbers == 60 * 2 * 4  # [G W, H], the larger of that and a block
    with Largest() as largest:
        tail_bound(gram(gradient_blocks(input_ND, weight_VD, targets_N)), 4)
    assert largest.numbers == 60 * 60
