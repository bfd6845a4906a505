"""The page of a report: question, answer, map, boundary, curves, a section a measure, gaps and provenance."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from isoloss.analysis.measures import MEASURES
from isoloss.report.answer import answer
from isoloss.report.bodies import curves_section, facts, map_section, said_list
from isoloss.report.boundary_page import boundary_section
from isoloss.report.curves import MOST_CURVES
from isoloss.report.gaps import gaps_section
from isoloss.report.page import Section, page
from isoloss.report.provenance import Ran, provenance_section
from isoloss.report.tables import measure_table
from isoloss.study import Study

if TYPE_CHECKING:
    from isoloss.analysis.boundary import Findings
    from isoloss.report.boundary_drawing import Drawing

NOTHING = "No trial has finished yet, so there is nothing to draw."


@dataclass(frozen=True)
class Content:
    """All that a page tells of a study.

    ``trials`` is ``table.trials_table`` and ``ran`` the same trials in its order, ``cells`` is
    ``surface.surface_table``, ``tables`` are the measures' by name; ``given_up`` holds state and reason by key, and
    ``found`` and ``drawn`` what a boundary search found, None for other searches.
    """

    study: Study
    trials: pd.DataFrame
    cells: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    ran: list[Ran]
    given_up: Mapping[str, Mapping[str, str]]
    found: Findings | None = None
    drawn: Drawing | None = None


def report_page(content: Content) -> str:
    """Return the page, the same to the byte for the same results."""
    study, trials = content.study, content.trials
    counted = facts(study, content.cells)
    sections = [Section("Answer", [f"<p>{NOTHING}</p>"])]
    if len(trials):
        curves = {one.trial.key: one.curve for one in content.ran[:MOST_CURVES]}
        sections = [
            Section("Answer", [said_list(answer(study, content.cells, content.tables, content.found))]),
            map_section(study, content.cells),
            *([] if content.drawn is None else [boundary_section(content.drawn)]),
            curves_section(study, trials, curves),
            *_measures(study, content.tables),
        ]
    sections.append(gaps_section(study, content.cells, content.tables, content.given_up))
    sections.append(provenance_section(study, content.ran))
    return page(study.name, study.question, counted, sections)


def _measures(study: Study, tables: Mapping[str, pd.DataFrame]) -> list[Section]:
    return [
        Section(
            measure.title,
            [
                measure_table(study, tables[measure.name], measure.title, f"{measure.name}.parquet"),
                f'<p class="note">{html.escape(measure.definition)}</p>',
            ],
        )
        for measure in MEASURES
        if measure.name in tables
    ]
