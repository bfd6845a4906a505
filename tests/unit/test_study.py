"""Studies: what they refuse, what they plan, and the keys of their trials."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from isoloss import (
    AdamW,
    Choice,
    Coverage,
    Decoder,
    Evaluation,
    Linear,
    Log,
    LowRank,
    Optuna,
    Probes,
    SpamLang,
    Steps,
    Stop,
    Study,
    Verdict,
    WarmupStableDecay,
)
from isoloss import Random as RandomSearch
from isoloss.config.axes import Span
from isoloss.config.base import canonical_json
from isoloss.config.search import Grid
from isoloss.study import Trial

RATE = Log(1e-4, 1e-1, points=7)


def study(**changes: Any) -> Study:
    fields = {
        "name": "spamlang-vocab",
        "question": "Does a larger vocabulary narrow the band of learning rates that converge?",
        "task": SpamLang(vocab_size=256, sequence_length=32),
        "model": Decoder(width=32, depth=2),
        "head": LowRank(rank=16),
        "optimizer": AdamW(learning_rate=3e-3),
        "budget": Steps(300, batch_size=32),
        "axes": {
            "task.vocab_size": Choice(64, 256, 1024),
            "head.rank": Choice(4, 16, 32),
            "optimizer.learning_rate": Log(1e-4, 1e-1, points=7),
        },
        "replicates": 2,
        "verdict": Verdict(converged_below=0.05),
        "search": Grid(),
    }
    return Study(**{**fields, **changes})


def trial(**changes: Any) -> Trial:
    parts = {
        "task": SpamLang(vocab_size=64, sequence_length=32),
        "model": Decoder(width=32, depth=2),
        "head": LowRank(rank=4),
        "optimizer": AdamW(learning_rate=1e-4),
        "budget": Steps(300, batch_size=32),
    }
    return Trial(**{**parts, **changes})


# --- keys


def test_the_keys_of_a_published_study_never_change() -> None:
    keys = [one.key for _, one in study().trials()]
    assert len(keys) == len(set(keys)) == 3 * 3 * 7 * 2
    assert keys[0] == "fe6dc56144d866bd"
    assert hashlib.sha256("".join(keys).encode()).hexdigest()[:16] == "013cb6fc0e7a0b1b"


def test_a_key_is_the_hash_of_the_trials_fields_in_order() -> None:
    text = (
        '{"budget":{"batch_size":32,"kind":"steps","steps":300},"head":{"kind":"low_rank","rank":4},'
        '"model":{"depth":2,"kind":"decoder","width":32},"optimizer":{"kind":"adamw","learning_rate":0.0001},'
        '"schema":1,"task":{"kind":"spamlang","sequence_length":32,"vocab_size":64}}'
    )
    assert trial().key == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_field_at_its_default_changes_no_key() -> None:
    spelled_out = trial(
        task=SpamLang(vocab_size=64, sequence_length=32, mapping="identity", scored="repeats"),
        model=Decoder(width=32, depth=2, attention_heads=4, kv_heads=None, rope_theta=10_000),
        optimizer=AdamW(learning_rate=1e-4, weight_decay=0, schedule=WarmupStableDecay(warmup=0.1)),
        evaluation=Evaluation(sequences=256),
        stop=Stop(above_initial=2, for_share=0.1),
        seed=0,
        replicate=0,
    )
    assert spelled_out.key == trial().key


@pytest.mark.parametrize(
    "part",
    [SpamLang(vocab_size=9, sequence_length=4), Decoder(width=32, depth=2), AdamW(learning_rate=1.0), LowRank(rank=3)],
    ids=lambda part: part.kind,
)
def test_a_new_field_with_a_default_changes_no_canonical_form(part: Any) -> None:
    class Later(type(part)):  # type: ignore[misc]
        momentum_of_tomorrow: float = 0.5
        schedule_of_tomorrow: WarmupStableDecay = WarmupStableDecay(warmup=0.3)

    fields = part.model_dump(exclude={"schedule"})
    assert canonical_json(Later(**fields)) == canonical_json(part)
    assert canonical_json(Later(**fields, momentum_of_tomorrow=0.25)) != canonical_json(part)


def test_every_field_of_a_trial_is_part_of_its_key() -> None:
    base = trial()
    others = {
        "task.vocab_size": trial(task=SpamLang(vocab_size=65, sequence_length=32)),
        "task.sequence_length": trial(task=SpamLang(vocab_size=64, sequence_length=31)),
        "task.mapping": trial(task=SpamLang(vocab_size=64, sequence_length=32, mapping="shuffled")),
        "task.scored": trial(task=SpamLang(vocab_size=64, sequence_length=32, scored="all")),
        "budget.steps": trial(budget=Steps(301, batch_size=32)),
        "budget.batch_size": trial(budget=Steps(300, batch_size=33)),
        "budget": trial(budget=Coverage(150.0, batch_size=32)),
        "head.rank": trial(head=LowRank(rank=5)),
        "head": trial(head=Linear()),
        "head.tied": trial(head=Linear(tied=True)),
        "evaluation.sequences": trial(evaluation=Evaluation(sequences=255)),
        "evaluation.points": trial(evaluation=Evaluation(points=23)),
        "evaluation.probes": trial(evaluation=Evaluation(probes=Probes())),
        "stop.above_initial": trial(stop=Stop(above_initial=5.0)),
        "stop.for_share": trial(stop=Stop(for_share=0.2)),
        "seed": trial(seed=1),
        "replicate": trial(replicate=1),
    }
    for name in ("attention_heads", "kv_heads"):
        others[f"model.{name}"] = trial(model=Decoder(**{"width": 32, "depth": 2, name: 2}))
    for name, value in {"width": 64, "depth": 3}.items():
        others[f"model.{name}"] = trial(model=Decoder(**{"width": 32, "depth": 2, name: value}))
    for name in ("mlp_ratio", "rope_theta", "norm_epsilon", "initial_std"):
        others[f"model.{name}"] = trial(model=Decoder(**{"width": 32, "depth": 2, name: 0.125}))
    for name in ("beta1", "beta2", "epsilon", "weight_decay", "clip_norm", "learning_rate"):
        others[f"optimizer.{name}"] = trial(optimizer=AdamW(**{"learning_rate": 1e-4, name: 0.125}))
    for name in ("warmup", "decay", "final"):
        schedule = WarmupStableDecay(**{name: 0.125})
        others[f"optimizer.schedule.{name}"] = trial(optimizer=AdamW(learning_rate=1e-4, schedule=schedule))
    kinds = {"task.kind", "model.kind", "head.kind", "optimizer.kind", "budget.kind"}
    assert {path for path, _ in base.leaves()} - kinds <= set(others)
    keys = [base.key, *(other.key for other in others.values())]
    assert len(set(keys)) == len(keys)


def test_the_order_of_axes_and_how_a_number_is_written_change_no_key() -> None:
    one = study(axes={"task.vocab_size": Choice(64, 256), "optimizer.learning_rate": Choice(1, 2)})
    other = study(axes={"optimizer.learning_rate": Choice(2.0, 1.0), "task.vocab_size": Choice(256, 64)})
    assert {t.key for _, t in one.trials()} == {t.key for _, t in other.trials()}


def test_what_does_not_train_changes_no_key() -> None:
    same = study(name="other", question="?", verdict=Verdict(converged_below=1.0), replicates=1)
    assert [t.key for _, t in same.trials()] == [t.key for _, t in study().trials()][:63]


# --- JSON


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"axes": {"head": Choice(Linear(), Linear(tied=True), LowRank(rank=8)), "optimizer.learning_rate": RATE}},
        {
            "axes": {
                "budget": Choice(Steps(300, batch_size=32), Coverage(37.5, steps=300)),
                "head.rank": Log(4, 32, points=4),
            }
        },
        {"axes": {"model.kv_heads": Choice(None, 2), "optimizer.schedule.warmup": Span(0.0, 0.5, points=3)}},
        {"search": RandomSearch(cells=5, sobol=False), "axes": {"optimizer.learning_rate": Log(1e-4, 1e-1)}},
        {"search": Optuna(sampler="TPESampler", cells=5, options={"multivariate": True})},
        {"map": ("head.rank", "task.vocab_size"), "stop": Stop(above_initial=None), "seed": 7},
    ],
    ids=["example", "heads", "budgets", "schedule", "random", "optuna", "map"],
)
def test_a_study_survives_json(changes: dict[str, Any]) -> None:
    declared = study(**changes)
    read = Study.from_json(declared.to_json())
    assert read == declared
    assert list(read.axes) == list(declared.axes)
    assert read.to_json() == declared.to_json()
    if isinstance(declared.search, Grid):
        assert [t.key for _, t in read.trials()] == [t.key for _, t in declared.trials()]


def test_cells_survive_json() -> None:
    declared = study(axes={"head": Choice(Linear(), LowRank(rank=8)), "optimizer.learning_rate": RATE})
    for cell, one in declared.trials():
        text = canonical_json(cell)
        assert declared.trial(declared.cell(json.loads(text)), one.replicate) == one


def test_a_study_of_another_schema_is_refused() -> None:
    text = study().to_json().replace('"schema": 1', '"schema": 99')
    with pytest.raises(ValueError, match=r"schema 99.*schema 1"):
        Study.from_json(text)


# --- planning


def test_the_grid_is_every_combination_once_a_replicate() -> None:
    planned = list(study().trials())
    assert [one.replicate for _, one in planned] == [0] * 63 + [1] * 63
    cells = {(t.task.vocab_size, t.head.rank, t.optimizer.learning_rate) for _, t in planned}
    rates = (1e-4, 3.16227766017e-4, 1e-3, 3.16227766017e-3, 1e-2, 3.16227766017e-2, 1e-1)  # half a decade apart
    assert cells == {(v, d, rate) for v in (64, 256, 1024) for d in (4, 16, 32) for rate in rates}
    for cell, one in planned:
        assert cell["task.vocab_size"] == one.task.vocab_size
        assert cell["head.rank"] == one.head.rank
        assert cell["optimizer.learning_rate"] == one.optimizer.learning_rate


def test_a_range_over_whole_numbers_is_rounded_and_holds_each_once() -> None:
    ranks = [cell["head.rank"] for cell in study(axes={"head.rank": Log(4, 32, points=4)}).cells()]
    assert ranks == [4, 8, 16, 32]
    ranks = [cell["head.rank"] for cell in study(axes={"head.rank": Span(1, 3, points=9)}).cells()]
    assert ranks == [1, 2, 3]


def test_axes_of_one_part_are_set_in_any_order() -> None:
    """From (width 32, 4 heads), (48, 12) passes neither by way of (48, 4)'s rank nor of (32, 12), which is no shape."""
    axes = {"model.attention_heads": Choice(4, 8), "model.width": Choice(32, 64)}
    shapes = [(t.model.width, t.model.attention_heads) for _, t in study(axes=axes, replicates=1).trials()]
    assert shapes == [(32, 4), (64, 4), (32, 8), (64, 8)]


def test_streams_are_common_to_cells_and_new_in_every_replicate() -> None:
    planned = [one for _, one in study().trials()]
    for names in (("data", 0), ("data", 1), ("held out",), ("init", "embedding.weight")):
        streams = [one.stream(*names) for one in planned]
        assert len(set(streams[:63])) == len(set(streams[63:])) == 1
        assert streams[0] != streams[63]
    first = planned[0]
    assert len({first.stream("data", step) for step in range(1000)} | {first.stream("held out")}) == 1001
    assert first.stream("data", 0) != next(study(seed=1).trials())[1].stream("data", 0)
    # sha256("0/0/data/0"), its first 64 bits
    assert first.stream("data", 0) == int(hashlib.sha256(b"0/0/data/0").hexdigest()[:16], 16)


def test_searches_other_than_the_grid_take_ranges_without_points() -> None:
    axes = {"optimizer.learning_rate": Log(1e-4, 1e-1), "head.rank": Log(4, 32)}
    for search in (RandomSearch(cells=8), Optuna(sampler="TPESampler", cells=8)):
        assert study(search=search, axes=axes).axes["head.rank"].points is None
    with pytest.raises(ValueError, match=r"'optimizer.learning_rate'.*grid needs.*points"):
        study(axes=axes)


# --- refusals: each message names the field, the value and what would be accepted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"axes": {"task.vocab": Choice(64, 128)}}, r"'task.vocab'.*no field 'vocab'.*did you mean 'vocab_size'"),
        ({"axes": {"taks.vocab_size": Choice(64, 128)}}, r"'taks.vocab_size'.*starts with one of task, model"),
        ({"axes": {"task.vocab_size.x": Choice(1, 2)}}, r"'vocab_size' of SpamLang is a single value"),
        ({"axes": {"task.vocab_size": Choice(64, 128.0)}}, r"'task.vocab_size'.*valid integer, not 128.0"),
        ({"axes": {"task.vocab_size": Choice(64, "128")}}, r"'task.vocab_size'.*valid integer, not '128'"),
        ({"axes": {"task.vocab_size": Choice(64, True)}}, r"'task.vocab_size'.*valid integer, not True"),
        ({"axes": {"task.vocab_size": Choice(1, 64)}}, r"'task.vocab_size'.*greater than or equal to 2, not 1"),
        ({"axes": {"optimizer.learning_rate": Choice(0.0, 0.1)}}, r"learning_rate.*greater than 0, not 0.0"),
        ({"axes": {"optimizer.learning_rate": Choice(1, 1.0)}}, r"'optimizer.learning_rate'.*1.0 appears twice"),
        ({"axes": {"head.rank": Choice(16, 33)}}, r"head.rank = 33.*at most model.width = 32, not 33"),
        ({"axes": {"head.rank": Log(4, 64, points=3)}}, r"head.rank.*at most model.width = 32, not 64"),
        ({"axes": {"model.width": Choice(32, 36)}}, r"'model.width'.*multiple of 2 \* attention_heads = 8.*not 36"),
        (
            {"axes": {"model.width": Choice(8, 32)}},
            r"model.width = 8.*head.rank must be at most model.width = 8, not 16",
        ),
        ({"axes": {"optimizer.schedule.warmup": Choice(0.0, 0.9)}}, r"warmup \+ decay must be at most 1, not 1.1"),
        ({"axes": {"head.kind": Choice("linear", "low_rank")}}, r"'kind' cannot vary.*whole parts"),
        ({"axes": {"verdict.converged_below": Choice(0.1, 0.2)}}, r"'verdict.converged_below' is nothing that a trial"),
        ({"axes": {"name": Choice("a", "b")}}, r"'name' is nothing that a trial trains with"),
        ({"axes": {"search": Choice(Grid(), RandomSearch(cells=3))}}, r"'search' is nothing that a trial trains with"),
        (
            {"axes": {"head": Choice(LowRank(rank=2), LowRank(rank=4)), "head.rank": Choice(4, 8)}},
            r"axes 'head' and 'head.rank' both set 'head.rank'",
        ),
        (
            {"axes": {"head.rank": Choice(4, 8), "head": Choice(LowRank(rank=2), LowRank(rank=4))}},
            r"axes 'head' and 'head.rank' both set 'head.rank'",
        ),
        ({"map": ("head.rank", "head.rank")}, r"map must name two different axes"),
        ({"map": ("head.rank", "task.mapping")}, r"map must name two different axes of 'task.vocab_size', 'head.rank'"),
        ({"name": "a/b"}, r"names a folder; not 'a/b'"),
        ({"name": ".."}, r"names a folder; not '\.\.'"),
        ({"name": "a..b"}, r"without '\.\.'.*not 'a\.\.b'"),
        ({"name": ""}, r"1 to 80 letters.*not ''"),
        ({"name": "x\n"}, r"names a folder"),
        ({"name": "x" * 81}, r"1 to 80 letters"),
        ({"replicates": 2.0}, r"replicates\n.*valid integer"),
        ({"replicates": 0}, r"replicates\n.*greater than or equal to 1"),
        ({"nonsense": 3}, r"nonsense\n.*not permitted"),
        ({"head": Decoder(width=32, depth=2)}, r"head\n"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_a_study_that_makes_no_sense_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=rf"(?s){words}"):
        study(**changes)


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: Log(1e-1, 1e-4, points=3), r"from low to high, not from 0.1 to 0.0001"),
        (lambda: Log(1, 1), r"from low to high, not from 1 to 1"),
        (lambda: Log(0, 1), r"must start above 0, not at 0"),
        (lambda: Log(1e-4, 1e-1, points=1), r"points\n.*greater than or equal to 2"),
        (lambda: Log(1e-4, math.inf), r"finite"),
        (lambda: Choice(1), r"at least two values.*not 1"),
        (lambda: Choice(4, 8, 4), r"value 4 appears twice"),
        (lambda: Choice(Linear(), Linear(tied=False)), r"appears twice"),
        (lambda: SpamLang(vocab_size=1, sequence_length=4), r"vocab_size\n.*greater than or equal to 2"),
        (lambda: SpamLang(vocab_size=64.0, sequence_length=4), r"vocab_size\n.*valid integer"),
        (lambda: SpamLang(vocab_size=64, sequence_length=4, mapping="random"), r"mapping\n.*'identity' or 'shuffled'"),
        (lambda: Steps(10.0, batch_size=3), r"steps\n.*valid integer"),
        (lambda: Coverage(3, steps=3, batch_size=3), r"exactly one of steps and batch_size"),
        (lambda: Coverage(3), r"exactly one of steps and batch_size"),
        (lambda: AdamW(learning_rate=math.inf), r"learning_rate\n.*finite"),
        (lambda: AdamW(learning_rate=True), r"learning_rate\n.*valid number"),
        (lambda: AdamW(learning_rate="1"), r"learning_rate\n.*valid number"),
        (lambda: AdamW(learning_rate=1e-3, beta2=1.0), r"beta2\n.*less than 1"),
        (lambda: Decoder(width=30, depth=1), r"width must be a multiple of 2 \* attention_heads = 8.*not 30"),
        (lambda: Decoder(width=32, depth=1, kv_heads=3), r"kv_heads must divide attention_heads = 4, not 3"),
        (lambda: trial(head=LowRank(rank=33)), r"head.rank must be at most model.width = 32, not 33"),
        (lambda: trial(sead=3), r"sead\n.*not permitted"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused_in_words(declare: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=rf"(?s){words}"):
        declare()


def test_studies_parts_and_axes_are_frozen() -> None:
    declared = study()
    for part, name in ((declared, "seed"), (declared.task, "vocab_size"), (declared.axes["head.rank"], "values")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, name, 3)
    with pytest.raises(TypeError):
        declared.axes["head.rank"] = Choice(1, 2)  # type: ignore[index]


# --- schedule


def test_the_schedule_warms_up_stays_and_decays() -> None:
    schedule = WarmupStableDecay(warmup=0.3, decay=0.4, final=0.5)
    expected = [1 / 3, 2 / 3, 1, 1, 1, 1, 0.9, 0.8, 0.7, 0.6]  # and 0.5 after the last of 10 steps
    assert [schedule.factor(step, 10) for step in range(10)] == pytest.approx(expected)
    constant = WarmupStableDecay(warmup=0.0, decay=0.0)
    assert [constant.factor(step, 3) for step in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 300, 1001])
def test_every_step_has_a_learning_rate_above_zero_and_at_most_the_declared(steps: int) -> None:
    for warmup, decay in ((0.1, 0.2), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)):
        schedule = WarmupStableDecay(warmup=warmup, decay=decay)
        assert all(0 < schedule.factor(step, steps) <= 1 for step in range(steps))
