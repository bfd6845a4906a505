"""The doctor finds what would keep studies from running, and says what to do."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.fs import FileSelector
from s3_server import BUCKET, serve_s3
from test_cli import call
from test_track_example import closed_address, database

from isoloss import checkup
from isoloss.checkup import Gpus, check_folder, check_gpus, check_packages, check_platform_module, find_gpus, sign
from isoloss.run.checkup import CLOCK_SECONDS, Node, judged
from isoloss.run.ports import check_dashboard, check_ports
from isoloss.run.state import State
from isoloss.run.store import FolderStore
from isoloss.run.store_checkup import check_store, seen_from_here, sign_in
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
    other_build = {**HERE, "isoloss": "none", "torch": "2.13.0+cu130"}
    fit = [node("a"), node("b", versions=other_build, ahead_s=CLOCK_SECONDS + 0.5, error_s=1.0)]
    assert [check.state for check in judged(fit, HERE, str(tmp_path))] == ["ok", "ok", "ok"]
    unfit = [
        node("a"),
        node("old", versions={**HERE, "torch": "2.9.0"}),
        node("blind", reads=False),
        node("deaf", writes=False),
        node("late", ahead_s=-CLOCK_SECONDS - 0.5),
    ]
    nodes, shared, clocks = judged(unfit, HERE, str(tmp_path))
    assert nodes.state == shared.state == "failed"
    assert nodes.text.startswith("old has torch 2.9.0, not 2.13.0:")
    assert f"{tmp_path} is not the same folder on blind, deaf" in shared.text
    assert (clocks.state, "late by -2.5 s" in clocks.text) == ("warning", True)
    bucket = judged(unfit, HERE, "s3://bucket/studies")[1].text
    assert "s3://bucket/studies cannot be read and written on blind, deaf" in bucket


SMI = "NVIDIA H200, 143771 MiB, 570.86.15"


@pytest.mark.parametrize(
    ("lines", "torch", "state", "text"),
    [
        (0, "", "ok", "no NVIDIA GPU"),
        (2, '[["H200", "H200"], "2.13.0", "12.8"]', "ok", f"2 x {SMI}: torch 2.13.0 (CUDA 12.8) can use all"),
        (2, '[["H200"], "2.13.0", "12.8"]', "warning", "can use 1 of 2"),
        (1, '[[], "2.13.0+cpu", null]', "failed", "torch 2.13.0+cpu (without CUDA) can use none"),
        (1, "libcudart.so: cannot open shared object file", "failed", "cannot be loaded"),
    ],
)
def test_gpus_are_those_of_the_driver_that_torch_can_use(
    lines: int, torch: str, state: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {"nvidia-smi": f"{SMI}\n" * lines, "python": torch}
    for name, says in programs.items():
        if says:
            (tmp_path / name).write_text(f"#!/bin/sh\necho 'hidden: '$CUDA_VISIBLE_DEVICES >>{tmp_path}/asked\n"
                                         f"printf '%s' '{says}'\n")  # fmt: skip
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(checkup.sys, "executable", str(tmp_path / "python"))
    check = check_gpus(find_gpus(all_of_them=True))
    assert (check.state, text in check.text) == (state, True), check.text
    if torch:
        assert (tmp_path / "asked").read_text().splitlines()[1] == "hidden: "  # to torch, none is


def test_gpus_that_ray_offers_and_torch_cannot_use_fail(tmp_path: Path) -> None:
    two, none = Gpus((SMI, SMI), ("H200", "H200"), "torch 2"), Gpus((SMI,), (), "torch 2")
    nodes = [node("a", gpus=two, offered=2.0), node("b", gpus=none, offered=1.0), node("c"), node("d", offered=1.0)]
    found = [check for check in judged(nodes, HERE, str(tmp_path)) if check.name == "gpus"]
    assert [(check.state, check.text[:2]) for check in found] == [("ok", "a:"), ("failed", "b:"), ("failed", "d:")]
    assert "Ray offers 1 GPUs, and torch can use 0" in found[1].text


@contextmanager
def answering(code: int) -> Iterator[int]:
    """Yield the port of a server on this machine that answers everything with this code."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def test_a_dashboard_that_lets_anyone_in_is_warned_of() -> None:
    with answering(200) as port:
        assert check_dashboard(f"http://127.0.0.1:{port}").state == "ok"
        check = check_dashboard(f"http://0.0.0.0:{port}")  # no name of this machine alone
        assert (check.state, "whoever reaches it can run code" in check.text) == ("warning", True)
        assert check_ports([("raylet", "127.0.0.1", port)]).state == "ok"
    with answering(401) as port:
        assert check_dashboard(f"http://0.0.0.0:{port}").text == f"http://0.0.0.0:{port} asks for a token"
    with answering(500) as port:
        assert "answers with an error, 500" in check_dashboard(f"http://127.0.0.1:{port}").text
    check = check_dashboard(f"http://127.0.0.1:{port}")
    assert (check.state, "does not answer" in check.text) == ("warning", True)
    check = check_ports([("raylet", "127.0.0.1", port)])
    assert (check.state, f"raylet on 127.0.0.1:{port};" in check.text) == ("failed", True)


def test_a_place_of_ledgers_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    place = State(tmp_path / "state", ledgers=str(tmp_path / "shared"))
    assert check_store(place).state == "ok"
    assert list((tmp_path / "shared").iterdir()) == []
    with serve_s3() as filesystem:
        place = State(tmp_path, ledgers=f"s3://{BUCKET}/studies")
        assert check_store(place) == checkup.Check(
            "ledger", "ok", f"s3://{BUCKET}/studies: files are read, listed, replaced and removed, and one driver holds"
        )
        assert [
            info.path for info in filesystem.get_file_info(FileSelector(BUCKET, recursive=True)) if info.is_file
        ] == []
        check = check_store(State(tmp_path, ledgers=f"s3://{BUCKET}-2/studies"))
        assert check.state == "failed"
        assert f"s3://{BUCKET}-2/studies" in check.text


def test_a_store_that_does_not_keep_its_word_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = State(tmp_path / "state", ledgers=str(tmp_path / "shared"))
    monkeypatch.setattr(FolderStore, "hold", lambda self, name: nullcontext())
    assert "two drivers could run one study" in check_store(place).text
    monkeypatch.setattr(FolderStore, "read", lambda self, name: b"what was there before")
    check = check_store(place)
    assert (check.state, "is not read back" in check.text) == ("failed", True)


def test_a_node_that_sees_another_folder_writes_nothing_there(tmp_path: Path) -> None:
    with sign_in(State(tmp_path, ledgers=str(tmp_path / "shared"))) as (store, text):
        assert seen_from_here(store.uri, text) == (True, True)
        assert seen_from_here(store.uri, "other") == (False, False)
        assert seen_from_here(str(tmp_path / "local"), text) == (False, False)
    assert not (tmp_path / "local").exists()
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.slow
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
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")].count("ok") == 4
    (tmp_path / "file").touch()
    code, out, _ = call(capsys, monkeypatch, "doctor", "--state", "file/state", "--address", "192.0.2.1:1")
    assert code == 3
    assert "Not a directory" in out
    assert "not looked at" in out
    (tmp_path / "platform.py").touch()
    code, out, _ = call(capsys, monkeypatch, "doctor", "--json")
    assert code == 3
    assert [check["state"] for check in json.loads(out)] == ["ok", "failed", "ok", "ok", "warning"]
