"""What every plan does, whatever its search: subclass ``PlanContract`` with the study of a new one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ledger_contract import small_study

from isoloss.config.search import Search
from isoloss.outcome import Curve
from isoloss.result import SERIES, Result
from isoloss.search.plan import Plan, Proposal, plan
from isoloss.study import Study


def searching(search: Search, axes: dict[str, Any] | None = None, replicates: int = 2, name: str = "small") -> Study:
    fields = {name: getattr(small_study(), name) for name in Study.model_fields}
    return Study(**{**fields, "axes": axes or fields["axes"], "search": search, "replicates": replicates, "name": name})


def answer(proposal: Proposal) -> Result:
    """A band of learning rates that converge: too small ones end high, too large ones meet a non-finite number."""
    cell, trial = proposal
    rate = cell.get("optimizer.learning_rate", 3e-3)
    excess = 0.05 * (3e-3 / rate) ** 0.9
    nonfinite = rate > 4e-2
    loss = (math.log(8), math.log(8) if nonfinite else min(excess, math.log(8)))
    curve = Curve((0, 4), loss, (0.01, 0.01), floor=0.0, ended="nonfinite" if nonfinite else "budget")
    return Result(trial.key, trial.canonical, curve, dict.fromkeys(SERIES, (None, 1.0)), {})


def go_on(one: Plan, finished: int) -> list[Proposal]:
    """Run trials one at a time, and return them."""
    done = []
    while len(done) < finished and (proposal := one.next()) is not None:
        one.claimed(*proposal)
        one.finished(proposal[1], answer(proposal))
        done.append(proposal)
    return done


def keys(proposals: list[Proposal]) -> list[str]:
    return [trial.key for _, trial in proposals]


class PlanContract:
    """Subclass it with a ``study`` fixture of at least 8 trials, and say whether a refilled plan goes on as before."""

    repeatable = True

    @pytest.fixture
    def study(self) -> Study:
        raise NotImplementedError

    def test_it_ends_and_proposes_no_trial_twice(self, study: Study) -> None:
        one = plan(study)
        done = go_on(one, 1_000)
        assert 8 <= len(done) == one.total < 1_000
        assert len(set(keys(done))) == len(done)
        assert one.next() is None

    def test_each_proposal_is_a_trial_of_the_study(self, study: Study) -> None:
        for cell, trial in go_on(plan(study), 8):
            assert list(cell) == list(study.axes)
            assert study.trial(cell, trial.replicate).key == trial.key
            assert trial.replicate < study.replicates

    def test_many_slots_get_different_trials_before_any_has_finished(self, study: Study) -> None:
        one = plan(study)
        proposals = []
        for _ in range(8):
            proposal = one.next()
            assert proposal is not None
            one.claimed(*proposal)
            proposals.append(proposal)
        assert len(set(keys(proposals))) == 8
        for proposal in reversed(proposals):
            one.finished(proposal[1], answer(proposal))
        rest = go_on(one, 1_000)
        assert not set(keys(rest)) & set(keys(proposals))

    def test_another_session_goes_on_where_this_one_stopped(self, study: Study) -> None:
        whole = keys(go_on(plan(study), 1_000))
        for stop in (7, len(whole)):
            one, other = plan(study), plan(study)
            for proposal in go_on(one, stop):
                other.claimed(*proposal)
                other.finished(proposal[1], answer(proposal))
            rest = keys(go_on(other, 1_000))
            if self.repeatable:
                assert rest == whole[stop:]
            assert not set(rest) & set(whole[:stop])

    def test_a_trial_that_a_machine_lost_holds_nothing_up(self, study: Study) -> None:
        one = plan(study)
        proposal = one.next()
        assert proposal is not None
        one.claimed(*proposal)
        one.gave_up(proposal[1])
        rest = go_on(one, 1_000)
        assert len(rest) >= 7
        assert proposal[1].key not in keys(rest)
