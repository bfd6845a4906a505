"""The ``isoloss`` command: plan, run, simulate, map, compare, export and publish studies; probe public models.

Exit codes: 0 done; 1 the study ended with trials that have no result; 2 wrong usage, study or settings; 3 refused
(another driver holds the study, the cluster is too small, a ledger, MLflow or cluster cannot be used); 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isoloss.cli_data import app as data_app
from isoloss.cli_doctor import doctor
from isoloss.cli_measures import compare, export, verdict
from isoloss.cli_probe import probe
from isoloss.errors import IsolossError
from isoloss.options import (
    STATE,
    STUDY_OR_NAME,
    ClusterAddress,
    Device,
    Dtype,
    StateFolder,
    StudyFile,
    StudyOrName,
    TrackingUri,
)
from isoloss.output import AsJson
from isoloss.output import console as _console
from isoloss.output import say as _say

if TYPE_CHECKING:
    from rich.console import Console

    from isoloss.run.state import State

INCOMPLETE, INTERRUPTED = 1, 130

app = typer.Typer(
    name="isoloss",
    help="Map where language models train and where they stop training.",
    epilog="Exit codes: 0 done; 1 some trials have no result; 2 wrong usage, study or settings; 3 refused (another "
    "driver, too small a cluster, an unusable ledger, cluster or MLflow); 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")


class Isolation(StrEnum):
    shared = "shared"
    fresh = "fresh"


Slots = Annotated[int | None, typer.Option(min=1, help="Trials at a time; without it, as many as the cluster holds.")]
WorkersPerSlot = Annotated[int, typer.Option(min=1, help="Data-parallel workers that train one trial together.")]
GpusPerWorker = Annotated[float, typer.Option(min=0.01, help="GPUs of a worker on cuda; a fraction shares one.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of a worker on the CPU.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile models with torch.compile.")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="How often a running trial is saved, to go on from.")]
DeviceOption = Annotated[Device, typer.Option(help="Where models train.")]
DtypeOption = Annotated[Dtype, typer.Option(help="Precision of matrix products; parameters stay float32.")]
IsolationOption = Annotated[Isolation, typer.Option(help="fresh: new processes for each trial, for trials of minutes.")]


@app.command()
def plan(
    study_file: StudyFile,
    state: StateFolder = STATE,
    device: DeviceOption = Device.cpu,
    slots: Annotated[int, typer.Option(min=1, help="Trials at a time, for the predicted time.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Show what a study would run: cells, trials, tokens, parameters, predicted time. Runs nothing."""
    from isoloss.report.plan import plan_of, plan_text
    from isoloss.run.state import State
    from isoloss.study_file import load_study

    study = load_study(study_file)
    facts = plan_of(study, State(state).ledger(study.name), device.value, slots)
    _say(facts, as_json, lambda console: console.print(plan_text(study, facts)))


@app.command()
def run(
    study_file: StudyFile,
    state: StateFolder = STATE,
    tracking_uri: TrackingUri = "",
    address: ClusterAddress = "",
    slots: Slots = None,
    workers_per_slot: WorkersPerSlot = 1,
    device: DeviceOption = Device.cpu,
    dtype: DtypeOption = Dtype.float32,
    compile: Compile = False,
    threads: Threads = 1,
    gpus_per_worker: GpusPerWorker = 1.0,
    isolation: IsolationOption = Isolation.shared,
    checkpoint_seconds: CheckpointSeconds = 30.0,
) -> None:
    """Run what a study lacks, then map it. Run it again after any interruption: nothing finished is repeated."""
    from isoloss.data.card import data_folder
    from isoloss.run.settings import RunSettings
    from isoloss.run.state import State
    from isoloss.session import run_session
    from isoloss.study_file import load_study
    from isoloss.train.settings import Settings

    study = load_study(study_file)
    settings = RunSettings(
        train=Settings(
            device=device.value,
            dtype=dtype.value,
            compile=compile,
            threads=threads,
            checkpoint_seconds=checkpoint_seconds,
            data=str(data_folder()),
        ),
        slots=slots,
        workers_per_slot=workers_per_slot,
        gpus_per_worker=gpus_per_worker,
        isolation=isolation.value,
    )
    summary = run_session(study, State(state, tracking_uri), settings, address or None, _console())
    if summary.interrupted or summary.gave_up:
        raise typer.Exit(INTERRUPTED if summary.interrupted else INCOMPLETE)


@app.command(name="simulate")
def simulate_study(
    study_file: StudyFile,
    source: Annotated[
        str,
        typer.Option(
            "--from", help="Finished trials (.parquet, .csv), or path/to/file.py:function of (cell, replicate)."
        ),
    ],
    slots: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 8,
    failures: Annotated[float, typer.Option(help="Probability that a machine fails while it trains a trial.")] = 0.0,
    state: Annotated[Path, typer.Option("--state", help="Folder of simulated ledgers and reports.")] = (
        STATE / "simulated"
    ),
    as_json: AsJson = False,
) -> None:
    """Run a study's search in seconds against a table or a function instead of training, then map it."""
    from isoloss.run.simulate import Simulation
    from isoloss.run.sources import load_source
    from isoloss.run.state import State
    from isoloss.session import simulate_session
    from isoloss.study_file import load_study

    study = load_study(study_file)
    answers = load_source(source, study)
    summary = simulate_session(
        study, State(state), answers, Simulation(slots, failures), None if as_json else _console()
    )
    _say({"study": study.name, "source": answers.name, **asdict(summary)}, as_json, lambda console: None)
    if summary.interrupted or summary.gave_up:
        raise typer.Exit(INTERRUPTED if summary.interrupted else INCOMPLETE)


@app.command()
def status(study: StudyOrName, state: StateFolder = STATE, as_json: AsJson = False) -> None:
    """Show how far a study is, also while it runs in another terminal."""
    from isoloss.report.status import status_of, status_text
    from isoloss.run.state import State

    found = State(state)
    facts = status_of(*found.find(study))
    _say(facts, as_json, lambda console: console.print(status_text(facts)))


@app.command(name="ls")
def list_studies(state: StateFolder = STATE, as_json: AsJson = False) -> None:
    """List the studies in the state folder."""
    from isoloss.report.status import status_line, status_of
    from isoloss.run.state import State

    found = [status_of(*pair) for pair in State(state).studies()]

    def text(console: Console) -> None:
        console.print("\n".join(map(status_line, found)) or f"no study was run in {state} yet", highlight=False)

    _say(found, as_json, text)


@app.command()
def report(study: StudyOrName, state: StateFolder = STATE, as_json: AsJson = False) -> None:
    """Draw the map of a study, finished or not, in the terminal and as files."""
    from isoloss.run.state import State
    from isoloss.session import draw

    found = State(state)
    definition, ledger = found.find(study)
    console = _console()
    written = draw(definition, ledger, found, None if as_json else console)
    _say([str(path) for path in written.files], as_json, lambda console: None)


@app.command()
def publish(
    study: StudyOrName, state: StateFolder = STATE, tracking_uri: TrackingUri = "", as_json: AsJson = False
) -> None:
    """Bring MLflow to what the ledger says; safe to repeat."""
    from isoloss.run.state import State
    from isoloss.session import draw
    from isoloss.track.publish import publish as publish_to_mlflow

    found = State(state, tracking_uri)
    definition, ledger = found.find(study)
    written = draw(definition, ledger, found, None)
    done = publish_to_mlflow(definition, ledger, found.tracking_uri, written.surface_png.parent)
    facts = {"tracking_uri": done.tracking_uri, "experiment": done.experiment_id, "run": done.run_id,
             "trials": done.trials, "written": done.written, "files": done.files, "link": done.link()}  # fmt: skip
    text = f"{done.trials} trials of {definition.name} in MLflow at {done.tracking_uri}, {done.written} written now"
    _say(facts, as_json, lambda console: console.print(text, highlight=False, soft_wrap=True))


@app.command()
def ui(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help=STUDY_OR_NAME)] = None,
    state: StateFolder = STATE,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
) -> None:
    """Open MLflow: starts its server here and prints the link; with a study, publishes it first and links its view."""
    from isoloss.run.state import State

    found, server = State(state), f"http://127.0.0.1:{port}"
    link = server if study is None else _published_link(study, found, server)
    _console().print(f"open {link}\nstop the server with Ctrl-C", highlight=False, soft_wrap=True)
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # saves a dozen processes that only agents use
    arguments = ["-m", "mlflow", "server", "--backend-store-uri", found.tracking_uri, "--workers", "1",
                 "--host", "127.0.0.1", "--port", str(port),
                 "--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]  # fmt: skip
    os.execv(sys.executable, [sys.executable, *arguments])


def _published_link(study: str, found: State, server: str) -> str:
    from isoloss.track.client import BusyError
    from isoloss.track.publish import lookup, publish

    definition, ledger = found.find(study)
    try:
        done = publish(definition, ledger, found.tracking_uri)
    except BusyError:  # the study is running, and its driver publishes
        done = lookup(definition, found.tracking_uri)
    return done.link(server=server)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def submit(
    context: typer.Context,
    study_file: StudyFile,
    address: Annotated[str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The cluster's dashboard.")] = (
        "http://127.0.0.1:8265"
    ),
    state: Annotated[
        Path, typer.Option("--state", envvar="ISOLOSS_STATE", help="State folder, an absolute path on the cluster.")
    ] = STATE,
    tracking_uri: TrackingUri = "",
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow the job's log.")] = False,
) -> None:
    """Run a study on a cluster as a Ray job. Options of `isoloss run`, such as --device cuda, are passed on."""
    from isoloss.run.submit import submit_study
    from isoloss.study_file import load_study

    load_study(study_file)
    options = ["--state", str(state.absolute()), *(["--tracking-uri", tracking_uri] if tracking_uri else [])]
    succeeded = submit_study(study_file, address, [*options, *context.args], follow=not detach, console=_console())
    if not succeeded:
        raise typer.Exit(INCOMPLETE)


for command in (verdict, compare, export, probe, doctor):
    app.command()(command)


@contextmanager
def _user_errors() -> Iterator[None]:
    """Turn what users can mend into one message and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        _fail("interrupted; run the same command to go on", INTERRUPTED)
    except IsolossError as error:
        _fail(str(error), error.exit_code)


def _fail(message: str, code: int) -> None:
    print(f"isoloss: {message}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Run the command line."""
    with _user_errors():
        app(prog_name="isoloss")


if __name__ == "__main__":
    main()
