"""Outcomes of curves drawn by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from isoloss import Curve, Outcome, Verdict
from isoloss.config.parts import Evaluation

CONVERGED, UNDERTRAINED, PLATEAUED, DIVERGED, NONFINITE = (
    Outcome.CONVERGED,
    Outcome.UNDERTRAINED,
    Outcome.PLATEAUED,
    Outcome.DIVERGED,
    Outcome.NONFINITE,
)


def judge(
    *loss: float, error: float = 0.001, floor: float = 0.0, ended: str = "budget", **thresholds: float
) -> Outcome:
    """The outcome of losses measured at steps 0, 10, 20, …"""
    steps = tuple(range(0, 10 * len(loss), 10))
    return Verdict(**thresholds).judge(Curve(steps, loss, (error,) * len(loss), floor, ended))


@pytest.mark.parametrize(
    ("loss", "outcome"),
    [
        ((4.0, 2.0, 1.0, 0.5, 0.1, 0.01), CONVERGED),
        ((4.0, 3.9, 3.8, 3.7, 3.6, 3.5), UNDERTRAINED),  # a straight line: the last 30 % bring 30 %
        ((4.0, 2.0, 1.0, 1.0, 1.0, 1.0), PLATEAUED),
        ((4.0, 4.0, 4.0, 4.0, 4.0, 4.0), PLATEAUED),  # never started
        ((4.0, 3.0, 3.5, 4.5, 5.0, 5.0), DIVERGED),  # ended above its initial loss
        ((4.0, 2.0, 1.0, 3.9, 3.9, 3.9), DIVERGED),  # spiked and stayed
        ((4.0, 2.0, 9.0, 1.5, 1.5, 1.5), PLATEAUED),  # spiked above the initial loss and recovered
        ((4.0, 1.0, 3.9, 3.0, 2.0, 1.1), UNDERTRAINED),  # spiked and still recovering
        ((4.0, 9.0, 9.0, 9.0, 0.5, 0.02), CONVERGED),
    ],
)
def test_each_shape_of_curve_has_its_outcome(loss: tuple[float, ...], outcome: Outcome) -> None:
    assert judge(*loss) == outcome


def test_why_training_ended_comes_before_what_was_reached() -> None:
    assert judge(4.0, 0.001, ended="nonfinite") == NONFINITE
    assert judge(4.0, 0.001, ended="above_initial") == DIVERGED
    assert judge(4.0, ended="nonfinite") == NONFINITE


def test_convergence_counts_excess_loss_up_to_the_threshold() -> None:
    assert judge(4.0, 2.0, 0.25, converged_below=0.25) == CONVERGED
    assert judge(4.0, 2.0, 0.2500001, converged_below=0.25) != CONVERGED
    assert judge(4.0, 2.0, 1.25, floor=1.0, converged_below=0.25) == CONVERGED
    assert judge(4.0, 2.0, 1.25, floor=0.75, converged_below=0.25) != CONVERGED


def test_half_of_the_best_progress_may_be_given_back() -> None:
    assert judge(4.0, 2.0, 3.0, 3.0, 3.0) == PLATEAUED  # exactly half of 2 nats
    assert judge(4.0, 2.0, 3.01, 3.01, 3.01) == DIVERGED
    assert judge(4.0, 2.0, 3.01, 3.01, 3.01, lost_progress=0.75) == PLATEAUED


def test_a_loss_above_the_initial_one_counts_beyond_two_standard_errors_of_the_difference() -> None:
    # Two independent errors of 0.3 and 0.4 give one of 0.5; the difference must exceed 1.0.
    errors = (0.3, 0.1, 0.4)
    for final, outcome in ((4.99, PLATEAUED), (5.01, DIVERGED)):
        assert Verdict().judge(Curve((0, 10, 20), (4.0, 4.5, final), errors, 0.0)) == outcome


def test_noise_around_a_flat_line_is_no_movement() -> None:
    assert judge(4.0, 3.98, 4.02, 3.99, 4.01, error=0.02) == PLATEAUED
    assert judge(4.0, 4.02, 3.97, 4.01, 3.98, error=0.02) == PLATEAUED
    assert judge(4.0, 3.98, 3.96, 3.94, 3.92, error=0.04) == PLATEAUED  # 0.08 of progress, below 2 x 0.057
    assert judge(4.0, 3.98, 3.96, 3.94, 3.92, error=0.02) == UNDERTRAINED  # beyond 2 x 0.028
    assert judge(4.0, 3.98, 3.95, 3.97, 3.99, error=0.02) == PLATEAUED  # 4/5 given back, within noise


def test_a_small_learning_rate_that_still_falls_is_undertrained() -> None:
    assert judge(*(4.0 - 0.001 * i for i in range(11)), error=0.0) == UNDERTRAINED


def test_the_tail_must_bring_more_than_its_share_of_all_progress() -> None:
    # Over 100 steps the tail begins at 70; the loss there is measured.
    def outcome(at_70: float) -> Outcome:
        steps = (0, 10, 40, 70, 100)
        return Verdict().judge(Curve(steps, (4.0, 3.0, 2.5, at_70, 2.0), (0.0,) * 5, 0.0))

    assert outcome(2.0 + 0.02 * 2.0 - 1e-9) == PLATEAUED
    assert outcome(2.0 + 0.02 * 2.0 + 1e-9) == UNDERTRAINED


def test_the_loss_where_the_tail_begins_lies_between_its_neighbours() -> None:
    # Log-spaced points: 70 is halfway from 40 to 100, where the loss fell by 0.1, so the tail brings 0.05 of 2.
    curve = Curve((0, 10, 40, 100), (4.0, 3.0, 2.1, 2.0), (0.0,) * 4, 0.0)
    assert Verdict(still_falling=0.0249).judge(curve) == UNDERTRAINED
    assert Verdict(still_falling=0.0251).judge(curve) == PLATEAUED
    assert Verdict(tail=0.6, still_falling=0.0499).judge(curve) == UNDERTRAINED
    assert Verdict(tail=0.6, still_falling=0.0501).judge(curve) == PLATEAUED


def test_a_tail_that_rises_is_no_progress() -> None:
    assert judge(4.0, 2.0, 1.0, 1.0, 1.1, 1.2) == PLATEAUED


def test_excess_is_capped_at_the_initial_one_and_at_it_for_trials_that_broke() -> None:
    def capped(*loss: float, ended: str = "budget") -> float:
        return Curve(tuple(range(len(loss))), loss, (0.0,) * len(loss), 1.0, ended).capped_excess

    assert capped(4.0, 2.5) == 1.5
    assert capped(4.0, 7.0) == 3.0
    assert capped(4.0, 2.5, ended="nonfinite") == 3.0
    assert capped(4.0, 2.5, ended="above_initial") == 3.0
    assert capped(4.0, ended="nonfinite") == 3.0


@pytest.mark.parametrize("total", [1, 4, 22, 23, 24, 100, 300, 100_000])
def test_losses_are_measured_at_log_spaced_steps_from_the_first_to_the_last(total: int) -> None:
    steps = Evaluation(points=24).steps(total)
    assert steps[0] == 0
    assert steps[-1] == total
    assert steps == sorted(set(steps))
    assert len(steps) <= 24
    if total < 24:
        assert steps == list(range(total + 1))
    else:
        # Neighbours among 1 ... total keep a ratio of total^(1/22), up to rounding to whole steps.
        ratio = total ** (1 / 22)
        for earlier, later in pairwise(steps[1:]):
            assert later <= max(ratio * (earlier + 0.5) + 0.5, earlier + 1)
