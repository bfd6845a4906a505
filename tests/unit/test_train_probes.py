"""Probes while training: against NumPy's SVD of the same model, and that they change nothing."""

# B sequences, T positions, N probed tokens, V vocabulary, M width, D columns of the last matrix

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isoloss import AdamW, Decoder, Evaluation, Linear, LowRank, Probes, SpamLang, Steps
from isoloss.model.decoder import LanguageModel
from isoloss.result import Result
from isoloss.study import Trial
from isoloss.tasks.base import UNSCORED, Batch
from isoloss.train.loop import Training, train
from isoloss.train.probes import sample
from isoloss.train.settings import Settings
from isoloss.train.workers import Workers

torch.set_num_threads(1)

ALL = Probes(tokens=48, updates=True)


def trial(probes: Probes | None = ALL, **changes: Any) -> Trial:
    parts: dict[str, Any] = {
        "task": SpamLang(vocab_size=64, sequence_length=4),
        "model": Decoder(width=16, depth=1, attention_heads=2),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=0.01),
        "budget": Steps(6, batch_size=8),
        "evaluation": Evaluation(sequences=40, points=7, probes=probes),
    }
    return Trial(**{**parts, **changes})


def at_start(trial: Trial) -> tuple[LanguageModel, np.ndarray, np.ndarray]:
    """The model before its first update, and hidden states and targets of the probed tokens, in float64."""
    training = Training(trial, Settings(), Workers())
    prober, model = training.prober, training.bare_model
    assert prober is not None
    with torch.no_grad():
        hidden_NM = model.hidden(prober.batch.inputs_BT).flatten(0, 1)[prober.place_N].double().numpy()
    return model, hidden_NM, prober.targets_N.numpy()


def probabilities(logits_NV: np.ndarray) -> np.ndarray:
    exponentials_NV = np.exp(logits_NV - logits_NV.max(-1, keepdims=True))
    return exponentials_NV / exponentials_NV.sum(-1, keepdims=True)


@pytest.mark.parametrize("head", [Linear(), LowRank(rank=3)], ids=["linear", "low_rank"])
def test_survival_and_spectra_at_the_start_are_those_of_numpys_svd(head: Linear | LowRank) -> None:
    model, hidden_NM, targets_N = at_start(trial(head=head))
    state = {name: value.double().numpy() for name, value in model.head.state_dict().items()}
    weight_VD = state["weight_VM"] if isinstance(head, Linear) else state["out_VD"]
    input_ND = hidden_NM if isinstance(head, Linear) else hidden_NM @ state["in_DM"].T
    rank = weight_VD.shape[1]
    gradient_NV = probabilities(input_ND @ weight_VD.T) - np.eye(64)[targets_N]
    left_VD, singular_D, _ = np.linalg.svd(weight_VD, full_matrices=False)
    kept_NV = gradient_NV @ left_VD @ left_VD.T
    suppressed_N = np.linalg.norm(gradient_NV - kept_NV, axis=1) / np.linalg.norm(gradient_NV, axis=1)
    energy = singular_D / singular_D.sum()
    found = {name: values[0] for name, values in train(trial(head=head), Settings()).series.items()}
    expected = {
        "suppressed": np.linalg.norm(gradient_NV - kept_NV) / np.linalg.norm(gradient_NV),
        "cosine": (gradient_NV * kept_NV).sum() / np.linalg.norm(gradient_NV) / np.linalg.norm(kept_NV),
        "gain": (np.linalg.norm(kept_NV) / np.linalg.norm(gradient_NV)) ** 2 * 64 / rank,
        "survival_rank": rank,
        "suppressed_mean": suppressed_N.mean(),
        "suppressed_p10": np.quantile(suppressed_N, 0.1),
        "head_effective_rank": math.exp(-(energy * np.log(energy)).sum()),
        "head_condition": singular_D[0] / singular_D[-1],
        "log_z": np.log(np.exp(input_ND @ weight_VD.T).sum(-1)).mean(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    # A random subspace of D of V dimensions keeps D / V of the squared norm.
    assert found["suppressed"] == pytest.approx(math.sqrt(1 - rank / 64), rel=0.1)


def test_probes_change_nothing_that_is_trained() -> None:
    with_probes, without = train(trial(), Settings()), train(trial(probes=None), Settings())
    assert with_probes.curve == without.curve
    assert {name: with_probes.series[name] for name in without.series} == without.series
    assert trial().key != trial(probes=None).key


def test_of_each_update_its_size_and_its_gradients_are_recorded() -> None:
    of = trial(optimizer=AdamW(learning_rate=0.01, clip_norm=1e-3))
    result = train(of, Settings())
    assert result.series["update_rms_head"][0] is None
    training = Training(of, Settings(), Workers())
    for step in range(1, 4):
        before = training.bare_model.head.weight_VM.detach().clone()
        training.update()
        change = (training.bare_model.head.weight_VM.detach() - before).double()
        assert result.series["update_rms_head"][step] == pytest.approx(float(change.square().mean().sqrt()), rel=1e-6)
    sizes = {"embedding": 65 * 16 if of.task.input_vocab_size == 65 else 64 * 16, "head": 64 * 16}
    config = of.model
    sizes["attention"], sizes["mlp"] = 4 * 16 * 16, 3 * 16 * config.mlp_width
    sizes["norm"] = 3 * 16
    assert sum(sizes.values()) == of.parameters
    # Together, the groups' squares are the square of the whole gradient's norm, before it is clipped.
    for step in range(1, 7):
        squares = [sizes[group] * result.series[f"gradient_rms_{group}"][step] ** 2 for group in sizes]  # type: ignore[operator]
        assert math.sqrt(sum(squares)) == pytest.approx(result.series["gradient_norm"][step], rel=1e-5)


def test_a_resumed_trial_has_the_same_probes() -> None:
    checkpoints: list[bytes] = []
    whole = train(trial(), Settings(checkpoint_seconds=0), save=checkpoints.append)
    for checkpoint in checkpoints[:2]:
        resumed = train(trial(), Settings(), checkpoint=checkpoint)
        assert replace(resumed, machine={}).to_bytes() == replace(whole, machine={}).to_bytes()
    assert Result.from_bytes(whole.to_bytes()) == whole


def test_probed_tokens_are_scored_and_spread() -> None:
    targets_BT = torch.arange(200 * 6).view(200, 6)
    targets_BT[:, 0] = UNSCORED
    targets_BT[50:, 3:] = UNSCORED
    part, places = sample(Batch(torch.zeros_like(targets_BT), targets_BT), 30)
    chosen = part.targets_BT.flatten()[places]
    assert len(places) == len(chosen.unique()) == 30
    assert bool((chosen != UNSCORED).all())
    rows = (chosen // 6).unique()
    assert len(rows) >= 14
    assert (int(rows.min()), int(rows.max())) == (0, 199)
    part, places = sample(Batch(targets_BT, targets_BT), 10_000)
    assert len(places) == 50 * 5 + 150 * 2
