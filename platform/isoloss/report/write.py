"""The report of a study, written from its ledger: a page, pictures, and the tables behind them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from isoloss.analysis.measures import MEASURES, measure_tables
from isoloss.analysis.surface import surface_table, waiting_table
from isoloss.analysis.table import trials_table
from isoloss.config.search import Boundary
from isoloss.run.ledger import Ledger
from isoloss.run.members import members
from isoloss.study import Study

if TYPE_CHECKING:
    from isoloss.analysis.boundary import Findings
    from isoloss.report.boundary_drawing import Drawing
    from isoloss.report.provenance import Ran

FORMER = ("surface.html", "curves.html", "boundary.html")
"""Pages that reports had before report.html held all."""

OPTIONAL = (
    *(f"{measure.name}.parquet" for measure in MEASURES),
    *("sensitivity.csv", "boundary.png", "boundary.parquet"),
)
"""Files that not every study has."""


@dataclass(frozen=True)
class Written:
    """The files of a report, and what it found beyond the table of trials, for those who go on to print it.

    ``measures`` are the files of the measures that have rows, and ``tables`` the same as frames, by the measure's
    name. The files of the boundary, and ``findings``, are None where there is no boundary search, or no trial of it
    yet.
    """

    report_html: Path
    surface_png: Path
    trials: Path
    surface: Path
    boundary_png: Path | None
    boundary: Path | None
    sensitivity_csv: Path | None
    measures: Mapping[str, Path]
    tables: Mapping[str, pd.DataFrame]
    findings: Findings | None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that were written."""
        alone = (path for path in vars(self).values() if isinstance(path, Path))
        return *alone, *self.measures.values()


def write_report(study: Study, ledger: Ledger, folder: Path) -> Written:
    """Write the report of a study, finished or not, into ``folder``; the same results give the same files, to the byte.

    Each file is written whole or not at all. Raises OSError when the folder cannot be written.
    """
    # Drawing libraries take a second to load: only a report pays for it.
    from isoloss.report.picture import message_picture, surface_picture
    from isoloss.report.report_page import NOTHING, Content, report_page

    folder.mkdir(parents=True, exist_ok=True)
    trials = trials_table(study, ledger)
    waiting = waiting_table(study, ledger)
    cells = surface_table(study, trials, waiting)
    tables = measure_tables(study, trials, ledger.result)
    found, drawn = _boundary(study, ledger, trials, waiting)
    given_up = {key: why for key, why in ledger.unfinished().items() if key in set(waiting["key"])}
    content = Content(study, trials, cells, tables, _ran(study, ledger, trials), given_up, found, drawn)
    files = {
        "report.html": report_page(content).encode(),
        "surface.png": surface_picture(study, cells) if len(trials) else message_picture(f"{study.name}: {NOTHING}"),
        "trials.parquet": parquet(trials),
        "surface.parquet": parquet(cells),
        **{f"{name}.parquet": parquet(table) for name, table in tables.items()},
    }
    if "sensitivity" in tables:
        files["sensitivity.csv"] = tables["sensitivity"].to_csv(index=False, lineterminator="\n").encode()
    if found is not None and drawn is not None:
        from isoloss.report.boundary_picture import boundary_picture

        files["boundary.png"] = boundary_picture(drawn)
        if found.table is not None:
            files["boundary.parquet"] = parquet(found.table)
    for name, data in files.items():
        _write(folder / name, data)
    for name in (*OPTIONAL, *FORMER):
        if name not in files:
            # What an earlier definition of the study left must not be taken for this one's.
            (folder / name).unlink(missing_ok=True)
    paths = {name: folder / name for name in files}
    return Written(
        report_html=paths["report.html"],
        surface_png=paths["surface.png"],
        trials=paths["trials.parquet"],
        surface=paths["surface.parquet"],
        boundary_png=paths.get("boundary.png"),
        boundary=paths.get("boundary.parquet"),
        sensitivity_csv=paths.get("sensitivity.csv"),
        measures={name: paths[f"{name}.parquet"] for name in tables},
        tables=tables,
        findings=found,
    )


def _ran(study: Study, ledger: Ledger, trials: pd.DataFrame) -> list[Ran]:
    """Return what is told of each finished trial, in the order of the table."""
    from isoloss.report.provenance import Ran

    of_key = {trial.key: trial for _, _, trial in members(study, ledger.claims())}
    return [Ran(of_key[result.key], result.curve, result.machine) for result in ledger.results(trials["key"])]


def _boundary(
    study: Study, ledger: Ledger, trials: pd.DataFrame, waiting: pd.DataFrame
) -> tuple[Findings | None, Drawing | None]:
    """Return what a boundary search found, and as it is drawn; None for other searches, and before its first map."""
    if not isinstance(study.search, Boundary):
        return None, None
    from isoloss.analysis.boundary import findings
    from isoloss.report.boundary_drawing import drawing

    found = findings(study, ledger)
    return found, None if found is None else drawing(study, found, trials, waiting)


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
