"""How far a study is, from its ledger alone, and so from any terminal while it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from rich.console import Group
from rich.table import Table

from isoloss.config.search import Boundary
from isoloss.outcome import Outcome
from isoloss.report.course_words import volume_in_words, why_stopped
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.search.boundary.course import Course
from isoloss.search.plan import plan
from isoloss.study import Study


def status_of(study: Study, ledger: Ledger) -> dict[str, Any]:
    """Return the counts of a study's trials and who drives it now; raises ValueError when its search is unusable."""
    done = ledger.finished()
    claims = list(members(study, ledger.claims()))
    finished = [claim.key for claim, _, _ in claims if claim.key in done]
    outcomes = Counter(str(study.verdict.judge(result.curve)) for result in ledger.results(finished))
    unfinished = ledger.unfinished()
    open_keys = [claim.key for claim, _, _ in claims if claim.key not in done]
    boundary = _boundary(study, ledger, len(finished), len(claims))
    return {
        "study": study.name,
        "question": study.question,
        "trials": boundary["total"] if boundary else plan(study).total,
        "finished": len(finished),
        "claimed": len([key for key in open_keys if key not in unfinished]),
        "outcomes": {str(outcome): outcomes[str(outcome)] for outcome in Outcome},
        "given_up": {key: unfinished[key] for key in open_keys if key in unfinished},
        "driver": ledger.driven_by(),
        "ledger": ledger.root,
        **({"boundary": boundary} if boundary else {}),
    }


def _boundary(study: Study, ledger: Ledger, finished: int, claimed: int) -> dict[str, Any]:
    """Return how a boundary search went, as its driver recorded it; nothing for other searches."""
    search = study.search
    if not isinstance(search, Boundary):
        return {}
    recorded = ledger.course(study) or Course(finished, claimed, search.trials, (), None)
    found = replace(recorded, finished=finished, claimed=claimed)
    return {
        "total": found.total,
        "most": found.most,
        "reason": found.reason,
        "misclassified_volume": {str(check.trials): check.error_volume for check in found.checks},
        "tolerance": search.tolerance,
        "volume_in_words": volume_in_words(found, search),
        "why_stopped": why_stopped(found, search),
    }


def status_line(facts: dict[str, Any]) -> str:
    """Return a study's state as one line."""
    state = f"running ({facts['driver']})" if facts["driver"] else "idle"
    if not facts["driver"] and facts["finished"] == facts["trials"]:
        state = "finished"
    return f"{facts['study']}: {facts['finished']}/{facts['trials']} trials, {state}"


def status_text(facts: dict[str, Any]) -> Group:
    """Return a study's state as text for a terminal."""
    table = Table.grid(padding=(0, 2))
    table.add_row("question", facts["question"])
    table.add_row("outcomes", ", ".join(f"{count} {name}" for name, count in facts["outcomes"].items()))
    table.add_row("claimed", f"{facts['claimed']} trials that have no result yet")
    if "boundary" in facts:
        table.add_row("misclassified volume", facts["boundary"]["volume_in_words"])
        table.add_row("search", facts["boundary"]["why_stopped"])
    for key, why in facts["given_up"].items():
        table.add_row("given up", f"trial {key}, {why['state']}: {why['reason']}")
    table.add_row("ledger", facts["ledger"])
    return Group(status_line(facts), table)
