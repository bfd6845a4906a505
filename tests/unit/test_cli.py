"""The command line: what a user's mistakes get to hear. Each is one message, a non-zero exit and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isoloss import cli

GOOD = """
from isoloss import AdamW, Choice, Coverage, Decoder, Linear, Log, LowRank, Optuna, Random, SpamLang, Steps, Study

def make(**changes):
    fields = dict(
        name="cli", question="What is said?", task=SpamLang(vocab_size=8, sequence_length=4),
        model=Decoder(width=8, depth=1, attention_heads=1), head=LowRank(rank=2), optimizer=AdamW(learning_rate=1e-3),
        budget=Steps(4, batch_size=3), axes={"optimizer.learning_rate": Log(1e-3, 1e-1, points=3)}, replicates=2,
    )
    return Study(**{**fields, **changes})
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return (exit code, stdout, stderr)."""
    monkeypatch.setattr("sys.argv", ["isoloss", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


MISTAKES = {
    'make(axes={"task.vocabsize": Choice(4, 8)})': "SpamLang has no field 'vocabsize' (did you mean 'vocab_size'?)",
    'make(axes={"task.vocab_size": Choice(4, "8")})': "'task.vocab_size': vocab_size: Input should be a valid integer",
    "make(replicates=1.5)": "replicates: Input should be a valid integer",
    'make(axes={"optimizer.learning_rate": Log(1e-1, 1e-3)})': "must run from low to high, not from 0.1 to 0.001",
    "make(head=LowRank(rank=16))": "head.rank must be at most model.width = 8, not 16",
    'make(axes={"head.rank": Choice(2, 9)})': "head.rank must be at most model.width = 8, not 9",
    "make(task=SpamLang(vocab_size=1, sequence_length=4))": "vocab_size: Input should be greater than or equal to 2",
    'make(name="a/b")': "name must be",
    'make(name="a..b")': "without '..'",
    'make(axes={"verdict.converged_below": Choice(0.1, 0.2)})': "is nothing that a trial trains with",
    'make(axes={"model.depth": Choice(1)})': "at least two values to change anything",
    'make(axes={"model.depth": Choice(1, 1)})': "appears twice",
    "make(budget=Coverage(3.0))": "exactly one of steps and batch_size",
    'make(search=Optuna(sampler="Guess", cells=3))': "Optuna has no 'Guess'",
    "make(nonsense=1)": "nonsense: Extra inputs are not permitted",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[5:45])
def test_a_wrong_study_is_refused_with_its_file_and_reason(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (here / "wrong.py").write_text(f"{GOOD}\nstudy = {text}\n")
    for command in ("plan", "run"):
        code, out, err = call(capsys, monkeypatch, command, "wrong.py")
        assert code == 2
        assert MISTAKES[text] in err
        assert err.startswith("isoloss: ")
        assert err.count("\n") == 1
        assert out == ""
    assert not list((here / ".isoloss").glob("ledger/*/claims/*")), "something was half-written"


def test_files_that_are_no_study_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "broken.py").write_text("x = 1\nstudy = Study(\n")
    (here / "other.py").write_text(f"{GOOD}\ndef wide():\n    return make(name='wide')\n")
    (here / "raises.py").write_text("x = 1\nraise RuntimeError('no data')\n")
    for file, said in {
        "broken.py": "broken.py, line 2: '(' was never closed",
        "raises.py": "raises.py, line 2: RuntimeError: no data",
        "missing.py": "there is no study file missing.py",
        "other.py": "other.py defines no `study`; it has other.py:make, other.py:wide",
        "other.py:deep": "other.py defines no study 'deep'; it has other.py:make, other.py:wide",
    }.items():
        code, _, err = call(capsys, monkeypatch, "plan", file)
        assert (code, said in err, err.count("\n")) == (2, True, 1), err
    code, out, _ = call(capsys, monkeypatch, "plan", "other.py:wide", "--json")
    assert code == 0
    assert json.loads(out)["study"] == "wide"


def test_a_plan_counts_cells_trials_tokens_and_parameters(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "good.py").write_text(f"{GOOD}\nstudy = make()\n")
    code, out, _ = call(capsys, monkeypatch, "plan", "good.py", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["cells"], facts["trials"], facts["finished"]) == (3, 6, 0)
    assert facts["tokens"] == 6 * 4 * 3 * 3  # trials, steps, sequences, scored positions
    # Embedding 8 * 8, backbone 256 + 576 + 24, head 2 * (8 + 8).
    assert facts["parameters"] == [952, 952]
    assert not (here / ".isoloss").exists(), "a plan runs nothing and writes nothing"
    code, out, _ = call(capsys, monkeypatch, "plan", "good.py")
    assert code == 0
    assert "3 x 2 replicates = 6 trials" in out


def test_studies_that_were_not_run_are_not_found(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "good.py").write_text(f"{GOOD}\nstudy = make()\n")
    for name, said in {
        "cli": "no study 'cli'",
        "../cli": "no study '../cli'",
        "good.py": "good.py was not run in",
    }.items():
        for command in ("status", "report", "publish", "ui"):
            code, _, err = call(capsys, monkeypatch, command, name)
            assert (code, said in err, err.count("\n")) == (3, True, 1), err
    code, out, _ = call(capsys, monkeypatch, "ls", "--json")
    assert (code, json.loads(out)) == (0, [])


def test_a_state_folder_that_cannot_be_written_is_said(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "good.py").write_text(f"{GOOD}\nstudy = make()\n")
    (here / "occupied").write_text("a file")
    code, _, err = call(capsys, monkeypatch, "run", "good.py", "--state", "occupied")
    assert code == 3
    assert "cannot use the ledger at" in err
    assert err.count("\n") == 1


def test_a_batch_that_workers_cannot_share_is_refused_before_ray_starts(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "good.py").write_text(f"{GOOD}\nstudy = make()\n")
    code, _, err = call(capsys, monkeypatch, "run", "good.py", "--workers-per-slot", "2")
    assert code == 2
    assert "a batch of 3 sequences is not divisible by 2 workers a slot" in err


COMMANDS = ("plan", "run", "status", "report", "publish", "ui", "submit", "ls", "verdict", "compare", "export")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_reads_well(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    code, out, _ = call(capsys, monkeypatch, *command.split(), "--help")
    assert code == 0
    assert "Usage: isoloss" in out
