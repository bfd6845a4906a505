"""``isoloss export``: every table as files, whole or not at all, the same to the byte."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from measured_ledgers import RATE, VOCABULARY, finish, made, study
from test_cli import call

from isoloss.analysis.export import curves_table
from isoloss.analysis.measures import MEASURES
from isoloss.analysis.table import trials_table
from isoloss.errors import IsolossError
from isoloss.report.export import export_study
from isoloss.report.folder import write_folder
from isoloss.run.ledger import Ledger


def excess(cell: dict[str, Any], replicate: int) -> float:
    return 0.3 * (math.log10(cell[RATE]) + 2) ** 2 + 0.01 * cell[VOCABULARY] / 8 + 0.001 * replicate


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_command_writes_every_table_and_says_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of, ledger = made(tmp_path / ".isoloss", study(replicates=1), excess)
    code, out, err = call(capsys, monkeypatch, "export", "a", "--json")
    facts = json.loads(out)
    folder = tmp_path / ".isoloss" / "exports" / "a"
    assert (code, err, facts["folder"]) == (0, "", str(folder))
    assert facts["tables"]["trials.parquet"] == 6
    assert facts["tables"]["curves.parquet"] == 18
    assert facts["tables"]["surface.parquet"] == 6
    assert facts["tables"]["sensitivity.parquet"] == 2
    assert set(files(folder)) == {*facts["tables"], "export.json"}
    about = json.loads((folder / "export.json").read_text())
    assert set(about["tables"]) == set(facts["tables"]) == set(about["files"])
    assert about["study"] == json.loads(of.to_json())
    for name, table in about["tables"].items():
        read = pd.read_parquet(folder / name)
        assert (len(read), list(read)) == (table["rows"], table["columns"])
        assert len(table["definition"]) > 40
    definitions = {measure.name: measure.definition for measure in MEASURES}
    assert about["tables"]["sensitivity.parquet"]["definition"] == definitions["sensitivity"]
    _, out, _ = call(capsys, monkeypatch, "export", "a", "--out", "there", "--format", "csv")
    assert "there/curves.csv: 18 rows" in out
    trials = pd.read_csv(tmp_path / "there" / "trials.csv", float_precision="round_trip")
    pd.testing.assert_frame_equal(trials, trials_table(of, ledger), check_dtype=False, check_exact=True)


def test_a_curve_has_a_row_a_point_with_its_cell_and_series(tmp_path: Path) -> None:
    of, ledger = made(tmp_path, study(), excess)
    trials = trials_table(of, ledger)
    curves = curves_table(of, ledger, trials)
    assert list(curves)[:8] == ["key", VOCABULARY, RATE, "replicate", "step", "tokens", "loss", "standard_error"]
    (rows,) = (curves[(curves[VOCABULARY] == 64) & (curves[RATE] == 1e-2) & (curves["replicate"] == 2)],)
    assert rows["step"].tolist() == [0, 50, 100]
    assert rows["tokens"].tolist() == [0, 50 * 2 * 3, 100 * 2 * 3]  # steps, sequences, scored positions
    np.testing.assert_array_equal(rows["loss"], [math.log(64), (math.log(64) + 0.082) / 2, 0.082])
    np.testing.assert_array_equal(rows["gradient_norm"], [math.nan, 1.5, 1.25])
    np.testing.assert_array_equal(rows["learning_rate"], [math.nan, 0.1, 0.0])
    assert list(dict.fromkeys(curves["key"])) == trials["key"].tolist()
    assert not len(curves_table(of, ledger, trials.head(0)))


def test_the_same_results_give_the_same_bytes_whatever_their_order(tmp_path: Path) -> None:
    of = study(replicates=1)
    for name, backwards in (("one", False), ("two", True)):
        ledger = finish(Ledger(tmp_path / name), of, excess, backwards=backwards)
        export_study(of, ledger, tmp_path / f"{name}-out", "parquet")
    assert files(tmp_path / "one-out") == files(tmp_path / "two-out")


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_folder(out, {"a.csv": b"1", "b.csv": b"2"}, "list.json", {"study": "a"})
    assert write_folder(out, {"a.parquet": b"3"}, "list.json", {"study": "a"}) == [out / "a.parquet", out / "list.json"]
    before = files(out)
    assert set(before) == {"a.parquet", "list.json"}
    assert json.loads(before["list.json"]) == {"study": "a", "files": ["a.parquet"]}

    def full(path: Path, data: bytes) -> int:
        if path.name == "b.csv":
            raise OSError(28, "No space left on device")
        return Path.open(path, "wb").write(data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(IsolossError, match=r"cannot write .*out: No space left on device"):
        write_folder(out, {"a.csv": b"1", "b.csv": b"2"}, "list.json", {})
    assert files(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"out"}, "nothing half-written is left"


def test_a_folder_with_other_files_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / ".isoloss", study(), excess, most=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    for out, said in {
        "mine": "mine holds notes.txt, which this command did not write",
        ".": "the command runs in",
    }.items():
        code, _, err = call(capsys, monkeypatch, "export", "a", "--out", out)
        assert (code, said in err, err.count("\n")) == (2, True, 1), err
    assert files(tmp_path / "mine") == {"notes.txt": b"precious"}
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, monkeypatch, "export", "a", "--out", "file/below")
    assert (code, err.count("\n")) == (3, 1)
    assert "cannot write file/below" in err
    code, _, err = call(capsys, monkeypatch, "export", "a", "--format", "xlsx")
    assert (code, "xlsx" in err) == (2, True)


def test_an_unfinished_study_is_exported_as_it_stands(tmp_path: Path) -> None:
    of = study()
    nothing = finish(Ledger(tmp_path / "nothing"), of, excess, most=0)
    written = export_study(of, nothing, tmp_path / "out", "csv")
    assert written == {"trials.csv": 0, "curves.csv": 0, "surface.csv": 6}
    assert list(pd.read_csv(tmp_path / "out" / "trials.csv"))[:3] == ["key", VOCABULARY, RATE]
