"""Paired comparisons against SciPy's own t-test, all resamples, and by hand."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import norm, t, ttest_rel

from isoloss import AdamW, Choice, Decoder, Linear, Log, LowRank, Random, SpamLang, Steps, Study
from isoloss.analysis.paired import arms, paired_table
from isoloss.report.terminal import terminal_map

RATE = "optimizer.learning_rate"


def study(**changes: Any) -> Study:
    parts: dict[str, Any] = {
        "name": "arms",
        "question": "Does the rank matter?",
        "task": SpamLang(vocab_size=16, sequence_length=4),
        "model": Decoder(width=16, depth=1),
        "head": Linear(),
        "optimizer": AdamW(learning_rate=1e-3),
        "budget": Steps(20, batch_size=4),
        "axes": {"head": Choice(Linear(), LowRank(rank=2), LowRank(rank=8)), RATE: Choice(1e-3, 1e-2)},
        "replicates": 4,
    }
    return Study(**{**parts, **changes})


LOSSES = {
    # (arm, learning rate): the loss of each replicate. Every arm's other rate is far worse, but for one replicate.
    ("linear()", 1e-3): (9.0, 9.0, 9.0, 0.0),
    ("linear()", 1e-2): (1.0, 1.1, 1.2, 1.5),
    ("low_rank(2)", 1e-3): (2.0, 2.5, 2.1, 2.92),
    ("low_rank(2)", 1e-2): (9.0, 9.0, 9.0, 9.0),
    ("low_rank(8)", 1e-3): (9.0, 9.0, 9.0, 9.0),
    ("low_rank(8)", 1e-2): (1.2, 1.0, 1.3, 1.5),
}


def trials(losses: dict[tuple[str, float], tuple[float, ...]] = LOSSES) -> pd.DataFrame:
    rows = [
        {"key": f"{arm}{rate}{i}", "head": arm, RATE: rate, "replicate": i, "capped_excess": loss,
         "outcome": "plateaued", "final_loss": loss, "final_excess": loss, "initial_loss": 10.0, "steps": 20}
        for (arm, rate), of_arm in losses.items() for i, loss in enumerate(of_arm)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_differences_and_p_values_are_scipys_paired_t_test() -> None:
    found = paired_table(study(), trials()).set_index("arm")
    # Replicate 3 of linear would be best at 1e-3, but the other replicates choose its rate.
    reference = np.array(LOSSES["linear()", 1e-2])
    p = {}
    for arm, rate in (("low_rank(2)", 1e-3), ("low_rank(8)", 1e-2)):
        expected = ttest_rel(LOSSES[arm, rate], reference)
        interval = expected.confidence_interval(0.95)
        row = found.loc[arm]
        differences = np.array(LOSSES[arm, rate]) - reference
        assert row["difference"] == pytest.approx(differences.mean())
        assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
        assert row["d_z"] == pytest.approx(differences.mean() / differences.std(ddof=1))
        assert row["p"] == pytest.approx(expected.pvalue)
        assert (row["reference"], row["pairs"], row["learning_rate"]) == ("linear()", 4, rate)
        assert row["reference_learning_rate"] == 1e-2
        p[arm] = expected.pvalue
    assert found["higher"].to_dict() == {"low_rank(2)": 4, "low_rank(8)": 2}
    smaller, larger = min(p, key=p.get), max(p, key=p.get)  # type: ignore[arg-type]
    assert found.loc[smaller, "p_holm"] == pytest.approx(2 * p[smaller])
    assert found.loc[larger, "p_holm"] == pytest.approx(max(2 * p[smaller], p[larger]))


def test_only_replicates_that_both_arms_finished_at_every_rate_are_paired() -> None:
    table = trials()
    missing = (table["head"] == "low_rank(2)") & (table["replicate"] == 1) & (table[RATE] == 1e-2)
    found = paired_table(study(), table[~missing]).set_index("arm")
    assert found["pairs"].to_dict() == {"low_rank(2)": 3, "low_rank(8)": 4}
    assert not len(paired_table(study(), table[table["replicate"] == 0]).dropna(subset="difference"))


def test_differences_without_spread_have_no_interval() -> None:
    equal = dict.fromkeys(LOSSES, (1.0,) * 4)
    found = paired_table(study(), trials(equal))
    assert (found["difference"] == 0).all()
    assert found[["low", "high", "d_z", "p", "p_holm"]].isna().all(axis=None)


def test_arms_are_parts_under_several_replicates() -> None:
    assert arms(study()) == ("head", ["linear()", "low_rank(2)", "low_rank(8)"])
    assert arms(study(replicates=1)) is None
    assert arms(study(head=LowRank(rank=2), axes={"head.rank": Choice(2, 8), RATE: Choice(1e-3, 1e-2)})) is None


def test_the_bootstrap_of_six_pairs_is_that_of_all_their_resamples() -> None:
    """Of all 6^6 resamples' means, the quantiles that stand out by Hesterberg's factor; no fewer pairs have any."""
    losses = {key: (*of_arm, *of_arm[:2]) for key, of_arm in LOSSES.items()}
    losses["low_rank(8)", 1e-2] = (1.2, 1.0, 1.3, 1.5, 0.7, 1.45)
    row = paired_table(study(replicates=6), trials(losses)).set_index("arm").loc["low_rank(8)"]
    differences = np.subtract(losses["low_rank(8)", 1e-2], losses["linear()", 1e-2])
    means = np.array(list(itertools.product(differences, repeat=6))).mean(axis=1)
    tail = norm.cdf(-math.sqrt(6 / 5) * t.ppf(0.975, 5))
    exact = np.quantile(means, [tail, 1 - tail])
    assert np.abs(np.array([row["boot_low"], row["boot_high"]]) - exact).max() < 0.05 * np.ptp(exact)
    assert paired_table(study(), trials())[["boot_low", "boot_high"]].isna().all(axis=None)


def test_an_arm_of_which_no_replicate_has_every_rate_has_no_pairs_yet() -> None:
    table = trials()
    found = paired_table(study(), table[(table["head"] != "low_rank(8)") | (table[RATE] == 1e-3)]).set_index("arm")
    assert found["pairs"].to_dict() == {"low_rank(2)": 4, "low_rank(8)": 0}
    assert found.loc["low_rank(8)", ["difference", "low", "high", "p", "p_holm"]].isna().all()
    assert found.loc["low_rank(2)", "p_holm"] == found.loc["low_rank(2)", "p"]


def test_arms_whose_learning_rates_lie_scattered_are_not_compared() -> None:
    scattered = study(axes={"head": Choice(Linear(), LowRank(rank=2)), RATE: Log(1e-4, 1e-1)}, search=Random(cells=8))
    assert not len(paired_table(scattered, trials()))
    assert list(paired_table(scattered, trials())) == list(paired_table(study(), trials()))


def test_a_comparison_is_told_in_the_terminal() -> None:
    paired = paired_table(study(), trials())
    out = io.StringIO()
    terminal_map(study(), trials(), Console(file=out, width=150), paired=paired)
    assert "low_rank(2) against linear(): +1.18 nats (95 %: +0.75 to +1.61), higher in 4 of 4 replicates." in (
        " ".join(out.getvalue().split())
    )
