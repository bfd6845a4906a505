"""The doctor finds what would keep studies from running, and says what to do."""

from __future__ import annotations

import fcntl
import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_cli import call
from test_track_example import closed_address, database

from isoloss import checkup
from isoloss.checkup import check_folder, check_packages, check_platform_module, sign
from isoloss.run.checkup import CLOCK_SECONDS, Node, judged
from isoloss.track import checkup as tracking
from isoloss.track.checkup import EXPERIMENT, check_tracking
from isoloss.track.client import connect


def test_packages_are_held_against_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"isoloss": "0.1", "torch": "2.13.0+cpu", "ray": "2.60.0", "optuna": "5.1"}
    needs = ["torch>=2.9,<3", "ray[default]>=2.60", 'transformers>=5; extra == "hf"']

    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(checkup.metadata, "version", version)
    monkeypatch.setattr(checkup.metadata, "requires", lambda name: needs)
    fit = check_packages()
    assert fit.state == "ok"
    assert "torch 2.13.0+cpu, ray 2.60.0, mlflow none" in fit.text
    needs += ["mlflow>=3", "optuna>=6"]
    unfit = check_packages()
    assert unfit.state == "failed"
    assert "mlflow is none and should be >=3; optuna is 5.1 and should be >=6" in unfit.text


def test_the_requirements_of_this_installation_are_met() -> None:
    assert check_packages().state == "ok"
    assert check_packages("a-package-that-nobody-installed").state == "warning"


@pytest.mark.parametrize("name", ["platform/__init__.py", "platform.py"])
def test_a_module_that_hides_pythons_own_is_named(tmp_path: Path, name: str) -> None:
    assert check_platform_module(tmp_path).state == "ok"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    assert check_platform_module(tmp_path).state == "ok"  # a folder without __init__.py hides nothing
    (tmp_path / name).touch()
    check = check_platform_module(tmp_path)
    assert check.state == "failed"
    assert str(tmp_path / name) in check.text


def test_a_folder_that_can_hold_ledgers_is_left_as_it_was(tmp_path: Path) -> None:
    check = check_folder(tmp_path / "state")
    assert check.state == "ok"
    assert list((tmp_path / "state").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = check_folder(tmp_path / "file" / "state")
    assert (check.state, check.text.count("Not a directory")) == ("failed", 1)


def test_locks_that_do_not_hold_and_little_room_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda folder: SimpleNamespace(free=4.2e9))
    assert check_folder(tmp_path).state == "warning"
    assert "4 GB free" in check_folder(tmp_path).text
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    check = check_folder(tmp_path)
    assert check.state == "failed"
    assert "two drivers" in check.text


def test_a_sign_is_gone_afterwards_whatever_happens(tmp_path: Path) -> None:
    def fails() -> None:
        with sign(tmp_path) as (file, text):
            assert file.read_text() == text
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not list(tmp_path.iterdir())


HERE = {"python": "3.11.7", "isoloss": "0.1", "torch": "2.13.0"}


def node(name: str, **changes: Any) -> Node:
    facts = {"versions": HERE, "reads": True, "writes": True, "ahead_s": 0.0, "error_s": 0.01}
    return Node(name, **{**facts, **changes})


def test_nodes_that_differ_are_named(tmp_path: Path) -> None:
    fit = [node("a"), node("b", versions={**HERE, "isoloss": "none"}, ahead_s=CLOCK_SECONDS + 0.5, error_s=1.0)]
    assert [check.state for check in judged(fit, HERE, tmp_path)] == ["ok", "ok", "ok"]
    unfit = [
        node("a"),
        node("old", versions={**HERE, "torch": "2.9.0"}),
        node("blind", reads=False),
        node("deaf", writes=False),
        node("late", ahead_s=-CLOCK_SECONDS - 0.5),
    ]
    nodes, shared, clocks = judged(unfit, HERE, tmp_path)
    assert nodes.state == shared.state == "failed"
    assert nodes.text.startswith("old has torch 2.9.0, not 2.13.0:")
    assert f"{tmp_path} is not the same folder on blind, deaf" in shared.text
    assert (clocks.state, "late by -2.5 s" in clocks.text) == ("warning", True)


def test_mlflow_is_written_and_left_without_a_run(tmp_path: Path) -> None:
    uri = database(tmp_path)
    assert [check_tracking(uri).state for _ in range(2)] == ["ok", "ok"]
    client = connect(uri)
    assert [one.name for one in client.search_experiments()] == ["Default"]
    left = client.get_experiment_by_name(EXPERIMENT)
    assert left is not None
    assert left.lifecycle_stage == "deleted"


def test_an_mlflow_that_is_away_is_told() -> None:
    check = check_tracking(closed_address())
    assert check.state == "failed"
    assert "trials would still run" in check.text


def test_the_command_says_what_failed_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "check_tracking", lambda uri: checkup.Check("mlflow", "warning", uri))
    code, out, _ = call(capsys, monkeypatch, "doctor")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")].count("ok") == 3
    (tmp_path / "file").touch()
    code, out, _ = call(capsys, monkeypatch, "doctor", "--state", "file/state", "--address", "192.0.2.1:1")
    assert code == 3
    assert "Not a directory" in out
    assert "not looked at" in out
    (tmp_path / "platform.py").touch()
    code, out, _ = call(capsys, monkeypatch, "doctor", "--json")
    assert code == 3
    assert [check["state"] for check in json.loads(out)] == ["ok", "failed", "ok", "warning"]
