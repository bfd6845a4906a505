"""The report of a study, written from its ledger: pages, a picture, and the tables behind them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from isoloss.analysis.paired import arms, paired_table
from isoloss.analysis.sensitivity import sensitivity_table, why_not
from isoloss.analysis.surface import surface_table, waiting_table
from isoloss.analysis.table import trials_table
from isoloss.analysis.tokens_to_loss import tokens_to_loss
from isoloss.config.search import Boundary
from isoloss.run.ledger import Ledger
from isoloss.study import Study

if TYPE_CHECKING:
    from isoloss.analysis.boundary import Findings

OPTIONAL = (
    *("sensitivity.parquet", "sensitivity.csv", "paired.parquet", "tokens_to_loss.parquet"),
    *("boundary.html", "boundary.png", "boundary.parquet"),
)
"""Files that not every study has."""


@dataclass(frozen=True)
class Written:
    """The files of a report, and what it found beyond the table of trials, for those who go on to print it.

    The sensitivity files are None when the study has no learning-rate sensitivity; those of the boundary, and
    ``findings``, where it has no boundary search, or no trial of it yet; ``tokens_to_loss`` and ``ratios`` where the
    task's floor is known, since its excess loss tells more; ``paired`` where no axis lists parts to compare, or there
    is one replicate; the table ``comparisons`` is then empty.
    """

    surface_html: Path
    surface_png: Path
    curves_html: Path
    trials: Path
    surface: Path
    sensitivity: Path | None
    sensitivity_csv: Path | None
    boundary_html: Path | None
    boundary_png: Path | None
    boundary: Path | None
    paired: Path | None
    tokens_to_loss: Path | None
    findings: Findings | None
    comparisons: pd.DataFrame
    ratios: pd.DataFrame | None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that were written."""
        return tuple(path for path in vars(self).values() if isinstance(path, Path))


def write_report(study: Study, ledger: Ledger, folder: Path) -> Written:
    """Write the report of a study, finished or not, into ``folder``; the same results give the same files, to the byte.

    Each file is written whole or not at all. Raises OSError when the folder cannot be written.
    """
    # Drawing libraries take a second to load: only a report pays for it.
    from isoloss.report.bodies import curves_body, facts, in_words, surface_body
    from isoloss.report.curves import MOST_CURVES, curves_figure
    from isoloss.report.figures import surface_figure
    from isoloss.report.page import page
    from isoloss.report.picture import message_picture, surface_picture
    from isoloss.report.words import loss_name

    folder.mkdir(parents=True, exist_ok=True)
    trials = trials_table(study, ledger)
    waiting = waiting_table(study, ledger)
    cells = surface_table(study, trials, waiting)
    reason = why_not(study)
    sensitivity = None if reason else sensitivity_table(study, trials)
    paired = paired_table(study, trials)
    ratios = None
    if not study.task.floor_known:
        ratios = tokens_to_loss(study, trials, lambda key: ledger.result(key).curve)
    counted = facts(study, cells)
    if len(trials):
        shown = trials.head(MOST_CURVES)
        curves = {key: ledger.result(key).curve for key in shown["key"]}
        surface_html = page(
            study.name, study.question, counted, surface_body(study, cells, sensitivity, reason, paired, ratios),
            surface_figure(study, cells), in_words(study, cells, sensitivity),
        )  # fmt: skip
        curves_html = page(
            f"{study.name}: learning curves", study.question, counted, curves_body(study, trials, len(shown)),
            curves_figure(study, shown, curves), f"{loss_name(study).capitalize()} over steps of {len(shown)} trials.",
        )  # fmt: skip
        picture = surface_picture(study, cells)
    else:
        nothing = "No trial has finished yet, so there is nothing to draw."
        body = f"<p>{nothing}</p>"
        surface_html = page(study.name, study.question, counted, body, None, "")
        curves_html = page(f"{study.name}: learning curves", study.question, counted, body, None, "")
        picture = message_picture(f"{study.name}: {nothing}")
    files = {
        "surface.html": surface_html.encode(),
        "surface.png": picture,
        "curves.html": curves_html.encode(),
        "trials.parquet": parquet(trials),
        "surface.parquet": parquet(cells),
    }
    found, of_boundary = _boundary(study, ledger, trials, waiting, counted)
    files |= of_boundary
    if sensitivity is not None:
        files["sensitivity.parquet"] = parquet(sensitivity)
        files["sensitivity.csv"] = sensitivity.to_csv(index=False, lineterminator="\n").encode()
    if arms(study) is not None:
        files["paired.parquet"] = parquet(paired)
    if ratios is not None:
        files["tokens_to_loss.parquet"] = parquet(ratios)
    for name, data in files.items():
        _write(folder / name, data)
    optional: dict[str, Path | None] = {}
    for name in OPTIONAL:
        optional[name] = folder / name if name in files else None
        if name not in files:
            # What an earlier definition of the study left must not be taken for this one's.
            (folder / name).unlink(missing_ok=True)
    return Written(
        surface_html=folder / "surface.html",
        surface_png=folder / "surface.png",
        curves_html=folder / "curves.html",
        trials=folder / "trials.parquet",
        surface=folder / "surface.parquet",
        sensitivity=optional["sensitivity.parquet"],
        sensitivity_csv=optional["sensitivity.csv"],
        boundary_html=optional["boundary.html"],
        boundary_png=optional["boundary.png"],
        boundary=optional["boundary.parquet"],
        paired=optional["paired.parquet"],
        tokens_to_loss=optional["tokens_to_loss.parquet"],
        findings=found,
        comparisons=paired,
        ratios=ratios,
    )


def _boundary(
    study: Study, ledger: Ledger, trials: pd.DataFrame, waiting: pd.DataFrame, counted: str
) -> tuple[Findings | None, dict[str, bytes]]:
    """Return what a boundary search found, and its files by name; nothing for other searches."""
    if not isinstance(study.search, Boundary):
        return None, {}
    from isoloss.analysis.boundary import findings
    from isoloss.report.boundary_drawing import drawing
    from isoloss.report.boundary_figure import boundary_figure
    from isoloss.report.boundary_page import boundary_body, boundary_in_words
    from isoloss.report.boundary_picture import boundary_picture
    from isoloss.report.page import page

    found = findings(study, ledger)
    if found is None:
        return None, {}
    drawn = drawing(study, found, trials, waiting)
    html = page(
        f"{study.name}: boundary", study.question, counted, boundary_body(drawn), boundary_figure(drawn),
        boundary_in_words(drawn),
    )  # fmt: skip
    files = {"boundary.html": html.encode(), "boundary.png": boundary_picture(drawn)}
    return found, files if found.table is None else {**files, "boundary.parquet": parquet(found.table)}


def parquet(table: pd.DataFrame) -> bytes:
    """Return a table as a Parquet file that depends on its values alone: no index, no timestamp, no pandas version."""
    columns = {
        # An axis may hold both numbers and labels; Parquet wants one type a column.
        name: column.map(str) if column.map(type).nunique() > 1 and str in set(column.map(type)) else column
        for name, column in table.items()
    }
    data = pa.Table.from_pandas(pd.DataFrame(columns, columns=table.columns), preserve_index=False)
    sink = pa.BufferOutputStream()
    pq.write_table(data.replace_schema_metadata(None), sink, compression="zstd", version="2.6", store_schema=False)
    return bytes(sink.getvalue())


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
