"""What others wrote is only ever text: names, keys, questions, reasons and checkpoints that mean harm do none."""

from __future__ import annotations

import ast
import html
import html.parser
import io
import json
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.job_submission
import torch
from ledger_contract import ARITHMETIC, small_result, small_study
from measured_ledgers import RATE, RATES, VOCABULARY, finish, made, study
from rich.console import Console
from rich.table import Table
from test_cli import call

import isoloss
from isoloss import Choice, Evaluation, Log, Probes, Random
from isoloss.analysis.compare import compared
from isoloss.config.base import replace
from isoloss.config.corpus import Corpus, Files, Ladder
from isoloss.config.tasks import Prepared, Size, Text
from isoloss.data.card import DataError, read_card
from isoloss.output import console
from isoloss.report.comparison import write_comparison
from isoloss.report.write import write_report
from isoloss.run.book import Book
from isoloss.run.ledger import Ledger, LedgerError
from isoloss.run.state import State
from isoloss.run.store import sealed
from isoloss.run.submit import submit_study
from isoloss.search.plan import plan
from isoloss.study import PARTS
from isoloss.track.views import note
from isoloss.train.loop import train
from isoloss.train.settings import Settings

SCRIPT = "</script><script>alert(1)</script>"
TEXT = f"{SCRIPT}<img src=x onerror=alert(2)> & \"quoted\" 'twice' [/red][link=http://x]y[/link] $\\frac$ \x1b]0;t\x07"

NAMES = [
    *("", ".", "..", "../up", "a/../../b", "a/b", "a\\b", "/etc/passwd", "~", "-rf", ".hidden", "a..b", "a" * 81),
    *("a b", "a\n", "a\0b", "a;id", "$(id)", "a'b", 'a"b', SCRIPT, "s3://bucket", "a%2fb", "ａ", "a\u202eb"),
]


def outside(folder: Path, top: Path) -> set[Path]:
    """Return what lies below ``top`` and not in the folder, the folders on the way to it left out."""
    return {path for path in top.rglob("*") if not path.is_relative_to(folder) and not folder.is_relative_to(path)}


# --- names become folders


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_that_is_no_folders_is_refused(name: str, tmp_path: Path) -> None:
    makers = (
        lambda: small_study(name),
        lambda: Prepared(name=name),
        lambda: Corpus(name=name, source=Files("x.txt"), tokenizer=Ladder(512)),
    )
    for make in makers:
        with pytest.raises(ValueError, match="name"):
            make()
    with pytest.raises(DataError, match="no corpus"):
        read_card(tmp_path, name)
    with pytest.raises(LedgerError, match="no study"):
        State(tmp_path).find(name)


def test_no_field_that_a_trial_trains_with_takes_free_text() -> None:
    sizes = (Size(vocab_size=512, tokens=10**6, held_out_tokens=10**4),)
    data = Prepared(name="docs", digest="0" * 16, bytes=10**6, held_out_documents=1000, sizes=sizes)
    text = Text(data=data, vocab_size=512, sequence_length=16)
    paths = set()
    for of in (study(axes={}), study(task=text, axes={}, evaluation=Evaluation(probes=Probes()))):
        for path, _ in of.leaves():
            if path.partition(".")[0] in PARTS:
                paths.add(path)
                with pytest.raises((ValueError, LookupError)):
                    replace(of, path, TEXT)
                if not path.endswith("kind"):
                    with pytest.raises(ValueError, match="axes: "):
                        study(task=of.task, evaluation=of.evaluation, axes={path: Choice(TEXT, "../x")})
    assert {"task.data.name", "task.mapping", "optimizer.learning_rate", "head.rank"} < paths


@pytest.mark.parametrize("command", ["status", "report", "publish", "export", "verdict"])
def test_commands_refuse_a_name_in_one_line_and_make_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "victim", study(name="private"), lambda cell, replicate: 0.01, most=1)
    before = sorted(tmp_path.rglob("*"))
    options = ("--set", "converged_below=0.2") if command == "verdict" else ()
    code, out, err = call(
        capsys, monkeypatch, command, "../../victim/ledger/private", *options, "--state", "state/inner"
    )
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "no study '../../victim/ledger/private'" in err
    assert sorted(tmp_path.rglob("*")) == before


# --- a ledger that somebody else wrote


@pytest.mark.parametrize(
    "key", ["../escaped", "../../../escaped", "/tmp/escaped", "a/b", "", ".", "a\0b", "a\nb", SCRIPT], ids=repr
)
def test_a_key_that_is_no_files_name_is_refused(key: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledgers" / "small")
    ledger.open(small_study(), ARITHMETIC)
    attempts = (
        lambda: ledger.is_finished(key),
        lambda: ledger.result(key),
        lambda: ledger.finish(small_result(key)),
        lambda: ledger.give_up(key, "lost", ""),
        lambda: ledger.checkpoint(key),
        lambda: ledger.save_checkpoint(key, b""),
    )
    for attempt in attempts:
        with pytest.raises(LedgerError, match="is no trial's key"):
            attempt()
    assert outside(tmp_path / "ledgers" / "small", tmp_path) == set()


def tampered(ledger: Ledger, name: str, value: Any) -> None:
    """Write a file into a ledger as somebody who knows its format does."""
    path = Path(ledger.root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sealed(json.dumps(value).encode()))


@pytest.mark.parametrize("search", ["grid", "random"])
def test_claims_that_no_study_makes_are_left_out(search: str, tmp_path: Path) -> None:
    fields = {name: getattr(small_study(), name) for name in type(small_study()).model_fields}
    axes = {"optimizer.learning_rate": Log(1e-4, 1e-1), "task.vocab_size": Choice(8, 16)}
    of = (
        small_study()
        if search == "grid"
        else type(small_study())(**{**fields, "axes": axes, "search": Random(cells=8)})
    )
    ledger = Ledger(tmp_path / "ledgers" / "small")
    ledger.open(of, ARITHMETIC)
    first = Book(of, plan(of), ledger).next("a")
    assert first is not None
    hostile = {"key": "../../escaped", "cell": dict(first.cell), "replicate": 0, "created_ms": 0, "note": SCRIPT}
    tampered(ledger, "claims/000001.json", {"number": 1, **hostile})
    tampered(ledger, "claims/000002.json", {"number": 2, **hostile, "cell": {"task.vocab_size": "../x"}})
    tampered(ledger, "claims/000003.json", {"number": 3, **hostile, "replicate": -1, "cell": {}})
    book = Book(of, plan(of), ledger)
    resumed = book.next("a")
    assert resumed is not None
    assert resumed.trial.key == first.trial.key
    following = book.next("b")
    assert following is not None
    assert following.claim.number == 4
    tampered(ledger, "claims/000005.json", {"number": 5, "shell": "id"})
    with pytest.raises(LedgerError, match="is not one that this isoloss reads"):
        ledger.claims()
    assert outside(tmp_path / "ledgers" / "small", tmp_path) == set()


def test_a_study_under_a_hostile_name_in_a_ledger_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, ledger = made(tmp_path / "state", study(name="fine"), lambda cell, replicate: 0.01, most=1)
    header = {"schema": 1, "arithmetic": {}, "study": {**json.loads(of.to_json()), "name": "../../up"}}
    tampered(ledger, "study.json", header)
    before = outside(tmp_path / "state", tmp_path)
    for command in ("report", "status", "ls"):
        code, out, err = call(
            capsys, monkeypatch, command, *(["fine"] if command != "ls" else []), "--state", str(tmp_path / "state")
        )
        assert (code, out) == (3, "")
        assert "a name must be" in err
        assert "Traceback" not in err
    assert outside(tmp_path / "state", tmp_path) == before


def test_a_ledger_that_names_another_study_is_refused(tmp_path: Path) -> None:
    made(tmp_path, study(name="mine"), lambda cell, replicate: 0.01, most=1)
    made(tmp_path, study(name="theirs"), lambda cell, replicate: 0.01, most=1)
    (tmp_path / "ledger" / "mine").rename(tmp_path / "ledger" / "posing")
    with pytest.raises(LedgerError, match="holds the study 'mine'; give it that name"):
        State(tmp_path).find("posing")
    assert State(tmp_path).find("theirs")[0].name == "theirs"


class Harm:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.file, "harm")


def test_a_checkpoint_that_runs_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    trial = next(iter(small_study().trials()))[1]
    packed = io.BytesIO()
    torch.save({"key": trial.key, "step": 1, "curve": Harm(harm)}, packed)
    for checkpoint in (packed.getvalue(), pickle.dumps(Harm(harm), protocol=2)):
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            train(trial, Settings(), checkpoint=checkpoint)
        assert not harm.exists()
    torch.load(io.BytesIO(packed.getvalue()), weights_only=False)
    assert harm.exists(), "the checkpoint does harm to whoever trusts it"


def test_the_package_reads_nothing_by_means_that_run_code() -> None:
    found = []
    for path in sorted(Path(isoloss.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            found += [f"{path.name}:{node.lineno}: {what}" for what in _dangers(node)]
    # Studies and functions to simulate from are Python, which the user names and runs.
    assert [line.partition(":")[0] for line in found] == ["sources.py"], found


MODULES = ("pickle", "cloudpickle", "dill", "marshal", "shelve", "tarfile", "zipfile", "joblib", "yaml")
CALLS = ("eval", "exec", "system", "popen", "unpack_archive", "extractall")


def _dangers(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        yield from (name for name in names if name.partition(".")[0] in MODULES)
    if not isinstance(node, ast.Call):
        return
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    called = ast.unparse(node.func)
    of, _, name = called.rpartition(".")
    yield from (
        f"{option}=True" for option in ("allow_pickle", "shell", "trust_remote_code") if options.get(option) == "True"
    )
    if (name in CALLS and not (name == "eval" and of)) or (
        called == "torch.load" and options.get("weights_only") != "True"
    ):
        yield called


# --- pages


class Page(html.parser.HTMLParser):
    """The elements of a page, its texts outside scripts, and the scripts by type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append((dict(attrs).get("type") or "", ""))

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"] and self.cdata_elem == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = kind, before + data
        else:
            self.texts.append(data)

    def assert_harmless(self) -> None:
        assert not {"img", "iframe", "object", "embed", "base", "link", "form"} & set(self.tags)
        assert not [name for name, _ in self.attributes if name.startswith("on")]
        assert not [value for name, value in self.attributes if name in ("href", "src") and not value.startswith("#")]
        for kind, data in self.scripts:
            if kind == "application/json":
                json.loads(data)
            else:
                assert "alert" not in data


def test_pages_show_hostile_texts_and_obey_none(tmp_path: Path) -> None:
    of = study(question=TEXT, axes={VOCABULARY: Choice(8, 64), RATE: Choice(*RATES)})
    ledger = State(tmp_path).ledger("a")
    finish(ledger, of, lambda cell, replicate: 0.01, most=10)
    for number, (cell, trial) in enumerate(list(of.trials())[10:12], 10):
        ledger.claim(number, trial.key, cell, trial.replicate, TEXT)
        ledger.give_up(trial.key, "lost", TEXT)
    _, trial = next(iter(of.trials()))
    result = ledger.result(trial.key)
    result.machine.update(simulated=TEXT, hardware=TEXT)
    Path(ledger.root, "results", f"{trial.key}.arrow").unlink()  # a first result would stay
    ledger.finish(result)
    report = write_report(of, ledger, tmp_path / "report")
    assert all(re.fullmatch(r"[a-z_]+\.(html|png|parquet|csv)", path.name) for path in report.files)
    shown = Page(report.report_html.read_text())
    shown.assert_harmless()
    # The question, why trials were given up, the study as JSON, what it ran on, and how to run it again.
    assert sum(SCRIPT in text for text in shown.texts) >= 5
    other = made(tmp_path / "other", study(name="b", question=TEXT), lambda cell, replicate: 0.02)
    written = write_comparison(compared((of, ledger), other), tmp_path / "compared")
    Page(written[0].read_text()).assert_harmless()


def test_mlflows_note_shows_a_question_and_neither_links_nor_elements() -> None:
    asked = "<img src=x onerror=alert(1)> [here](javascript:alert(2)) `code` **bold**"
    line = note(study(question=asked), "1").splitlines()[2]
    assert "<" not in line
    assert line == (
        "&lt;img src=x onerror=alert(1)&gt; \\[here\\](javascript:alert(2)) \\`code\\` \\*\\*bold\\*\\*"
    )  # what Markdown shows as it was asked


# --- terminals


def test_a_terminal_shows_texts_and_obeys_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    of, ledger = made(tmp_path, study(question=TEXT), lambda cell, replicate: 0.01, most=3)
    for number, (cell, trial) in enumerate(list(of.trials())[3:4], 3):
        ledger.claim(number, trial.key, cell, trial.replicate)
        ledger.give_up(trial.key, "lost", TEXT)
    for command in ("status", "report"):
        code, out, _ = call(capsys, monkeypatch, command, "a", "--state", str(tmp_path))
        assert code == 0
        assert not {"\x1b", "\x07"} & set(out)
        assert (out.count("[/red][link=http://x]y[/link]") == 2) == (command == "status")


def test_a_message_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x\x1b[2J.py"
    _, _, err = call(capsys, monkeypatch, "plan", str(file))
    assert "\x1b" not in err
    shown = console()
    table = Table.grid()
    table.add_row("[bold]a[/bold]\x1b[2J")
    shown.print(table)
    shown.print("[/x]\x9b2J\r:smile:")
    out = capsys.readouterr().out
    assert out.split("\n")[0].rstrip() == "[bold]a[/bold]\N{REPLACEMENT CHARACTER}[2J"
    assert out.split("\n")[1] == "[/x]\N{REPLACEMENT CHARACTER}2J\N{REPLACEMENT CHARACTER}:smile:"


# --- shells


def test_a_submitted_command_is_one_words_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[dict[str, Any]] = []

    class Cluster:
        def __init__(self, address: str) -> None:
            pass

        def submit_job(self, **job: Any) -> str:
            jobs.append(job)
            return "raysubmit_1"

    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", Cluster)
    name = "a; rm -rf ~ $(id) `id` 'x' \"y\" && b.py"
    options = ["--state", "/shared/$(id) ; x", "--device", "cuda"]
    where, secret, quiet = f"{tmp_path / name}:wide", {"TOKEN": "$(id)"}, Console(quiet=True)
    submit_study(where, "of-names", "http://head:8265", options, secret, follow=False, console=quiet)
    words = shlex.split(jobs[0]["entrypoint"])
    assert words[words.index("run") + 1] == f"{name}:wide"
    assert words[-4:] == options
    assert "$(id)" in jobs[0]["runtime_env"]["env_vars"]["TOKEN"]
    assert "TOKEN" not in jobs[0]["entrypoint"]
    assert re.fullmatch("isoloss-of-names-[0-9a-f]{8}", jobs[0]["submission_id"])
