"""An export: every table of a study as a Parquet or CSV file, and one file that says what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pandas as pd

import isoloss
from isoloss.analysis.export import definitions, export_tables
from isoloss.report.folder import check_folder, write_folder
from isoloss.report.write import parquet
from isoloss.run.ledger import Ledger
from isoloss.study import Study

MANIFEST = "export.json"


def export_study(study: Study, ledger: Ledger, folder: Path, format: Literal["parquet", "csv"]) -> dict[str, int]:
    """Write the tables of a study into ``folder``, all or none; return the rows of each file.

    The same results give the same files, to the byte. ``export.json`` holds the study, and the rows, columns and
    definition of each table. Raises what ``write_folder`` raises.
    """
    check_folder(folder, MANIFEST)  # before the long part, not after it
    tables = export_tables(study, ledger)
    says = definitions()
    encode = parquet if format == "parquet" else _csv
    files = {f"{name}.{format}": encode(table) for name, table in tables.items()}
    about = {
        "isoloss": isoloss.__version__,
        "study": json.loads(study.to_json()),
        "tables": {
            f"{name}.{format}": {"rows": len(table), "columns": list(table), "definition": says[name]}
            for name, table in tables.items()
        },
    }
    write_folder(folder, files, MANIFEST, about)
    return {f"{name}.{format}": len(table) for name, table in tables.items()}


def _csv(table: pd.DataFrame) -> bytes:
    """Return a table as CSV: numbers with all digits that they need to read back the same, NaN as nothing."""
    return table.to_csv(index=False, lineterminator="\n").encode()
