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

from isoloss.cli_cluster import status, submit
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
    LedgerRoot,
    StateFolder,
    StudyFile,
    StudyOrName,
    TrackingUri,
)
from isoloss.output import AsJson, visible
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


class Placement(StrEnum):
    pack = "pack"
    spread = "spread"
    strict_pack = "strict-pack"
    strict_spread = "strict-spread"


def _usable_storage(url: str) -> str:
    if url:
        from isoloss.search.storage import check_storage

        check_storage(url)
    return url


class Isolation(StrEnum):
    shared = "shared"
    fresh = "fresh"


Slots = Annotated[int | None, typer.Option(min=1, help="Trials at a time; without it, as many as the cluster holds.")]
WorkersPerSlot = Annotated[int, typer.Option(min=1, help="Data-parallel workers that train one trial together.")]
GpusPerWorker = Annotated[float, typer.Option(min=0.01, help="GPUs of a worker on cuda; a fraction shares one.")]
OptunaStorage = Annotated[
    str,
    typer.Option(
        "--optuna-storage",
        envvar="ISOLOSS_OPTUNA_STORAGE",
        callback=_usable_storage,
        help="A database that shows the trials in optuna-dashboard, such as sqlite:///optuna.db.",
    ),
]
PlacementOption = Annotated[Placement, typer.Option(help="Workers of a slot on few nodes or on many; strict: always.")]
WaitForNodes = Annotated[float, typer.Option(min=0, help="Minutes that an autoscaler may take to add the first nodes.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of a worker on the CPU.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile models with torch.compile.")]
MicroBatch = Annotated[
    int | None, typer.Option(min=1, help="Sequences that a worker trains at once; without it, its share of a batch.")
]
Shard = Annotated[bool, typer.Option("--shard", help="Share each model out among a slot's workers (FSDP).")]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="How often a running trial is saved, to go on from.")]
DeviceOption = Annotated[Device, typer.Option(help="Where models train.")]
DtypeOption = Annotated[Dtype, typer.Option(help="Precision of matrix products; parameters stay float32.")]
IsolationOption = Annotated[Isolation, typer.Option(help="fresh: new processes for each trial, for trials of minutes.")]
MaxGpuHours = Annotated[
    float | None, typer.Option(min=0, help="Most hours that GPUs (on cpu: slots) may be held, over all runs.")
]
MaxCost = Annotated[float | None, typer.Option(min=0, help="The most that those hours may cost, at --price.")]
Price = Annotated[float | None, typer.Option(help="Price of an hour of a GPU, or on cpu of a slot, in any currency.")]


@app.command()
def plan(
    study_file: StudyFile,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    device: DeviceOption = Device.cpu,
    dtype: DtypeOption = Dtype.float32,
    compile: Compile = False,
    threads: Threads = 1,
    micro_batch: MicroBatch = None,
    slots: Annotated[int, typer.Option(min=1, help="Trials at a time, for the predicted time.")] = 2,
    price: Price = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="First train a few updates here, and time them.")] = (
        False
    ),
    seconds: Annotated[float, typer.Option(min=0, help="How long calibrating may take, two cells at least.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Show what a study would run and cost: trials, tokens, hours, memory, price. Runs nothing without --calibrate."""
    from isoloss.data.card import data_folder
    from isoloss.report.plan import plan_of, plan_text, sizes_of
    from isoloss.run.calibrate import calibrate as measured
    from isoloss.run.calibrate import known, said
    from isoloss.run.state import State
    from isoloss.study_file import load_study
    from isoloss.train.settings import Settings

    study = load_study(study_file)
    settings = Settings(device=device.value, dtype=dtype.value, compile=compile, threads=threads,
                        micro_batch=micro_batch, data=str(data_folder()))  # fmt: skip
    if calibrate:
        stderr = _console(stderr=True)
        measured(sizes_of(study), settings, seconds, state, lambda cell: stderr.print(said(cell), soft_wrap=True))
    facts = plan_of(
        study, State(state, ledgers=ledgers).ledger(study.name), device.value, slots, known(state, settings), price
    )
    _say(facts, as_json, lambda console: console.print(plan_text(study, facts)))


@app.command()
def run(
    study_file: StudyFile,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    tracking_uri: TrackingUri = "",
    address: ClusterAddress = "",
    slots: Slots = None,
    workers_per_slot: WorkersPerSlot = 1,
    device: DeviceOption = Device.cpu,
    dtype: DtypeOption = Dtype.float32,
    compile: Compile = False,
    threads: Threads = 1,
    micro_batch: MicroBatch = None,
    shard: Shard = False,
    gpus_per_worker: GpusPerWorker = 1.0,
    placement: PlacementOption = Placement.pack,
    wait_for_nodes: WaitForNodes = 0.0,
    isolation: IsolationOption = Isolation.shared,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    log_json: Annotated[bool, typer.Option("--log-json", help="Print the log of trials on stderr, too.")] = False,
    optuna_storage: OptunaStorage = "",
    max_gpu_hours: MaxGpuHours = None,
    max_cost: MaxCost = None,
    price: Price = None,
) -> None:
    """Run what a study lacks, then map it. Run it again after any interruption: nothing finished is repeated."""
    from isoloss.data.card import data_folder
    from isoloss.run.job import check_job
    from isoloss.run.limits import limit_of
    from isoloss.run.settings import RunSettings
    from isoloss.run.state import State
    from isoloss.session import run_session
    from isoloss.study_file import load_study
    from isoloss.train.settings import Settings

    check_job()
    study = load_study(study_file)
    settings = RunSettings(
        train=Settings(
            device=device.value,
            dtype=dtype.value,
            compile=compile,
            threads=threads,
            micro_batch=micro_batch,
            shard=shard,
            checkpoint_seconds=checkpoint_seconds,
            data=str(data_folder()),
        ),
        slots=slots,
        workers_per_slot=workers_per_slot,
        gpus_per_worker=gpus_per_worker,
        placement=placement.value,
        wait_for_nodes=wait_for_nodes,
        isolation=isolation.value,
    )
    limit = limit_of(max_gpu_hours, max_cost, price, device.value)
    summary = run_session(
        study,
        State(state, tracking_uri, ledgers),
        settings,
        address or None,
        _console(),
        log_json,
        limit,
        optuna_storage,
    )
    if summary.interrupted or summary.gave_up:
        raise typer.Exit(INTERRUPTED if summary.interrupted and not summary.stopped else INCOMPLETE)


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


@app.command(name="ls")
def list_studies(state: StateFolder = STATE, ledgers: LedgerRoot = "", as_json: AsJson = False) -> None:
    """List the studies in the state folder."""
    from isoloss.report.status import status_line, status_of
    from isoloss.run.state import State

    found = [status_of(*pair) for pair in State(state, ledgers=ledgers).studies()]

    def text(console: Console) -> None:
        console.print("\n".join(map(status_line, found)) or f"no study was run in {state} yet", highlight=False)

    _say(found, as_json, text)


@app.command()
def report(study: StudyOrName, state: StateFolder = STATE, ledgers: LedgerRoot = "", as_json: AsJson = False) -> None:
    """Draw the map of a study, finished or not, in the terminal and as files."""
    from isoloss.run.state import State
    from isoloss.session import draw

    found = State(state, ledgers=ledgers)
    definition, ledger = found.find(study)
    console = _console()
    written = draw(definition, ledger, found, None if as_json else console)
    _say([str(path) for path in written.files], as_json, lambda console: None)


@app.command()
def publish(
    study: StudyOrName,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    tracking_uri: TrackingUri = "",
    as_json: AsJson = False,
) -> None:
    """Bring MLflow to what the ledger says; safe to repeat."""
    from isoloss.run.state import State
    from isoloss.session import draw
    from isoloss.track.publish import TrackError
    from isoloss.track.publish import publish as publish_to_mlflow

    found = State(state, tracking_uri, ledgers)
    definition, ledger = found.find(study)
    written = draw(definition, ledger, found, None)
    done = publish_to_mlflow(definition, ledger, found.tracking_uri, written.surface_png.parent)
    facts = {"tracking_uri": done.tracking_uri, "experiment": done.experiment_id, "run": done.run_id,
             "trials": done.trials, "written": done.written, "files": done.files, "link": done.link()}  # fmt: skip
    text = f"{done.trials} trials of {definition.name} in MLflow at {done.tracking_uri}, {done.written} written now"
    _say(facts, as_json, lambda console: console.print(text, highlight=False, soft_wrap=True))
    if done.error:
        raise TrackError(f"not all files are there: {done.error}")


@app.command()
def ui(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help=STUDY_OR_NAME)] = None,
    state: StateFolder = STATE,
    ledgers: LedgerRoot = "",
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
) -> None:
    """Open MLflow: starts its server here and prints the link; with a study, publishes it first and links its view."""
    from isoloss.run.state import State

    found, server = State(state, ledgers=ledgers), f"http://127.0.0.1:{port}"
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


app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(submit)
for command in (status, verdict, compare, export, probe, doctor):
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
    print(f"isoloss: {visible(message)}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Run the command line."""
    with _user_errors():
        app(prog_name="isoloss")


if __name__ == "__main__":
    main()
