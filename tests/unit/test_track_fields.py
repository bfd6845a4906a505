"""What MLflow is told of a trial, as values: names, finite numbers, limits."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter

import pytest
from test_track_example import EXPECTED, result, study

from isoloss import Choice, Coverage, Evaluation, Linear, Log, LowRank, Span, Steps, Study
from isoloss.config.base import plain
from isoloss.run.ledger import Claim
from isoloss.study import Trial
from isoloss.track.fields import CURVES, FINALS, Child, finished_child, plot_name, study_params, trial_params
from isoloss.track.views import views

CREATED_MS = 1_790_000_000_000


def child(of: Study, cell: dict[str, object], trial: Trial) -> Child:
    claim = Claim(57, trial.key, plain(cell), trial.replicate, CREATED_MS)
    return finished_child(of, claim, cell, trial, "parent", result(trial))


def children(of: Study) -> list[Child]:
    return [child(of, cell, trial) for cell, trial in of.trials()]


def test_modules_leave_mlflow_unloaded() -> None:
    code = "import sys, isoloss.track.tracker, isoloss.track.publish; print('mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_params_carry_axes_logarithms_and_every_other_field() -> None:
    of = study()
    cell, trial = list(of.trials())[-1]
    params = trial_params(of, cell, trial)
    assert params["learning_rate"] == "0.1"
    assert params["log10_learning_rate"] == "-1"
    assert (params["vocab_size"], params["log2_vocab_size"]) == ("256", "8")
    assert (params["rank"], params["log2_rank"]) == ("8", "3")
    assert (params["replicate"], params["seed"]) == ("0", "0")
    assert (params["model/width"], params["model/kv_heads"]) == ("32", "none")
    assert params["optimizer/schedule/warmup"] == "0.1"
    assert params["derived/parameters"] == str(trial.parameters)
    assert "task/vocab_size" not in params
    assert len(params) <= 100


def test_axis_names_and_logarithms_follow_the_values() -> None:
    of = study(
        axes={
            "model.depth": Choice(2, 4),
            "head": Choice(Linear(), LowRank(rank=8)),
            "budget": Choice(Steps(300, batch_size=32), Coverage(37.5, steps=300)),
            "optimizer.beta2": Choice(0.9, 0.95),
            "optimizer.beta1": Span(0.8, 0.9, points=2),
            "optimizer.weight_decay": Choice(0.0, 0.1),
            "task.vocab_size": Log(64, 256, points=3),
        }
    )
    assert [plot_name(of, path) for path in of.axes] == [
        "log2_depth", "head", "budget", "beta2", "beta1", "weight_decay", "log2_vocab_size",
    ]  # fmt: skip
    cell, trial = next(iter(of.trials()))
    params = trial_params(of, cell, trial)
    assert params["budget"] == "steps(300, batch_size=32)"
    assert (params["head"], params["head/kind"]) == ("linear()", "linear")
    assert study_params(of)["space/head"] == "linear(), low_rank(8)"
    assert not any(name.startswith(("budget/", "head/")) for name in study_params(of))


def test_five_outcomes_each_finished_and_finite() -> None:
    of = study()
    made = children(of)
    assert Counter(c.tags["isoloss.outcome"] for c in made) == {
        "undertrained": 4, "plateaued": 4, "converged": 4, "diverged": 2, "nonfinite": 2,
    }  # fmt: skip
    for c in made:
        assert c.status == "FINISHED"
        assert c.name == "t0057"
        assert all(math.isfinite(value) for _, _, value in c.metrics)
        rate = float(c.params["learning_rate"])
        expected = "nonfinite" if rate == 0.1 and c.params["rank"] == "4" else str(EXPECTED[rate])
        assert c.tags["isoloss.outcome"] == expected


def test_names_and_points_stay_below_the_limits() -> None:
    of = study(evaluation=Evaluation(points=200), budget=Steps(20_000, batch_size=8))
    for c in children(of):
        counts = Counter(name for name, _, _ in c.metrics)
        assert set(counts) <= {*CURVES, *FINALS}
        assert len(counts) < 30
        assert max(counts.values()) <= 200
        assert len({(name, step) for name, step, _ in c.metrics}) == len(c.metrics)


def test_final_numbers_are_at_step_0_and_follow_the_curve() -> None:
    of = study()
    cell, trial = next((cell, trial) for cell, trial in of.trials() if cell["optimizer.learning_rate"] == 0.1)
    c = child(of, cell, trial)
    final = {name: value for name, step, value in c.metrics if name.startswith("result/")}
    assert {step for name, step, _ in c.metrics if name.startswith("result/")} == {0}
    initial = math.log(64)
    assert final["result/initial_loss"] == pytest.approx(initial)
    assert final["result/capped_excess"] == pytest.approx(initial)  # a nonfinite trial counts as no progress
    assert final["result/log10_capped_excess"] == pytest.approx(math.log10(initial))
    assert final["result/seconds"] == 1.25
    assert final["result/draws_per_symbol"] == 8 * 32 / 64  # of the updates up to its last finite loss
    assert c.end_ms == CREATED_MS + 1250
    assert c.curve_csv.splitlines()[0] == "step,loss,excess,standard_error,train_loss,gradient_norm,learning_rate"
    assert len(c.curve_csv.splitlines()) == 1 + 8


def test_digests_tell_a_new_verdict_from_new_numbers() -> None:
    of = study()
    stricter = study(verdict=of.verdict.model_copy(update={"converged_below": 1e-9}))
    cell, trial = next((cell, trial) for cell, trial in of.trials() if cell["optimizer.learning_rate"] == 0.01)
    before, after = child(of, cell, trial), child(stricter, cell, trial)
    assert before.numbers == after.numbers
    assert before.facts != after.facts


def test_views_hide_every_metric_that_they_do_not_show() -> None:
    for view in views(study()):
        if not view.charts:
            continue
        cards = view.state["compareRunCharts"]
        mentioned = {card["metricKey"] for card in cards if "metricKey" in card}
        assert mentioned == {*CURVES, *FINALS}
        assert len(view.tag(CREATED_MS)) < 20_000
        assert {card["metricSectionId"] for card in cards} == {view.state["compareRunSections"][0]["uuid"]}


def test_contour_needs_two_numeric_axes() -> None:
    def kinds(of: Study) -> list[str]:
        return [card["type"] for card in views(of)[0].state["compareRunCharts"] if not card["deleted"]]

    assert "CONTOUR" in kinds(study())
    assert "CONTOUR" not in kinds(study(axes={"optimizer.learning_rate": Log(1e-4, 1e-1, points=4)}))
    budgets = Choice(Steps(300, batch_size=32), Coverage(37.5, steps=300))
    assert "CONTOUR" not in kinds(study(axes={"optimizer.learning_rate": Log(1e-4, 1e-1, points=4), "budget": budgets}))
