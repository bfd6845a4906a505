"""``isoloss verdict``: other thresholds over the same curves, and what a user's mistakes get to hear."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from measured_ledgers import RATE, made, study
from test_cli import call

from isoloss import Verdict

EXCESS = {1e-3: 1.0, 1e-2: 0.04, 1e-1: 0.2}


def excess(cell: dict[str, float], replicate: int) -> float:
    return EXCESS[cell[RATE]] * (1 + replicate)


def test_outcomes_are_judged_again_and_the_ledger_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of, ledger = made(tmp_path / "state", study(), excess)
    before = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    thresholds = ("--set", "converged_below=0.3", "--set", "tail=0.6", "--state", "state")
    code, out, err = call(capsys, monkeypatch, "verdict", "a", *thresholds, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["verdict"] == {"converged_below": 0.1, "lost_progress": 0.5, "tail": 0.3, "still_falling": 0.02}
    assert facts["rejudged"] == {**facts["verdict"], "converged_below": 0.3, "tail": 0.6}
    was, now = Verdict(converged_below=0.1), Verdict(converged_below=0.3, tail=0.6)
    curves = [ledger.result(trial.key).curve for _, trial in of.trials()]
    expected = Counter((str(was.judge(curve)), str(now.judge(curve))) for curve in curves)
    assert {(row["from"], row["to"]): row["trials"] for row in facts["transitions"]} == expected
    # By hand: at 1e-2 the third replicate ends at 0.12; at 1e-1 the first ends at 0.2, the others beyond 0.3.
    assert facts["changed"] == 2 * 2
    assert facts["trials"] == 18
    after = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    assert after == before, "only --out writes"
    _, out, _ = call(capsys, monkeypatch, "verdict", "a", *thresholds)
    assert "4 of 18 finished trials change their outcome with converged_below 0.3 (the study: 0.1)" in " ".join(
        out.split()
    )
    assert "lowest excess loss" in out, "the new map has its findings"


def test_a_report_under_other_thresholds_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "state", study(replicates=1), excess)
    arguments = ("verdict", "a", "--set", "converged_below=0.3", "--state", "state", "--json")
    code, out, _ = call(capsys, monkeypatch, *arguments, "--out", "again")
    written = json.loads(out)["files"]
    assert code == 0
    assert written
    assert {Path(path).parent for path in written} == {Path("again")}
    pages = [Path(path).read_text() for path in written if path.endswith(".html")]
    said = "Judged again with converged_below 0.3 (the study: 0.1): Does it train?"
    assert all(said in text for text in pages)
    code, _, err = call(capsys, monkeypatch, *arguments, "--out", "state/reports/a")
    assert code == 2
    assert "holds the report under the study's own verdict" in err


MISTAKES = {
    "convergd_below=1": "Verdict has no field 'convergd_below' (did you mean 'converged_below'?); it has 'converged",
    "converged_below=0": "converged_below: Input should be greater than 0, not 0",
    "tail=1.5": "tail: Input should be less than 1, not 1.5",
    "tail=half": "tail: Input should be a valid number, not 'half'",
    "tail=NaN": "tail: Input should be a finite number, not nan",
    "tail": "--set takes field=value, as in --set converged_below=0.1; not 'tail'",
    "=1": "--set takes field=value",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_threshold_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / ".isoloss", study(), excess, most=1)
    code, out, err = call(capsys, monkeypatch, "verdict", "a", "--set", text)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert MISTAKES[text] in err


def test_a_field_twice_and_a_study_that_was_never_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / ".isoloss", study(), excess, most=1)
    code, _, err = call(capsys, monkeypatch, "verdict", "a", "--set", "tail=0.1", "--set", "tail=0.2")
    assert (code, "--set tail is given twice" in err) == (2, True)
    code, _, err = call(capsys, monkeypatch, "verdict", "b", "--set", "tail=0.1")
    assert (code, "no study 'b'" in err) == (3, True)
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, monkeypatch, "verdict", "a", "--set", "tail=0.1", "--out", "file")
    assert (code, err.startswith("isoloss: cannot write file"), err.count("\n")) == (3, True, 1)


def test_a_study_without_a_finished_trial_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / ".isoloss", study(), excess, most=0)
    code, out, _ = call(capsys, monkeypatch, "verdict", "a", "--set", "tail=0.1")
    assert code == 0
    assert "0 of 0 finished trials change" in out
