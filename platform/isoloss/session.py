"""One session of a study, from the command to the map: drive or simulate it, draw it, say what came of it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from isoloss.config.search import Grid, Random
from isoloss.run.book import Book, Summary
from isoloss.run.calibrate import known
from isoloss.run.cost import Costs, fit, seconds, whole_budgets
from isoloss.run.ledger import Ledger
from isoloss.run.limits import Limit, Spending
from isoloss.run.members import members
from isoloss.run.progress import Progress
from isoloss.run.settings import RunSettings
from isoloss.run.simulate import Simulated, Simulation, simulate
from isoloss.run.sources import Source
from isoloss.run.state import State
from isoloss.search.plan import listed_trials, plan
from isoloss.study import Study
from isoloss.train.settings import Settings

if TYPE_CHECKING:
    from isoloss.report.write import Written
    from isoloss.run.storage_watcher import StorageWatcher

LAST_TRY_SECONDS = 30.0
"""How long the end of a session waits for MLflow."""


def run_session(
    study: Study,
    state: State,
    settings: RunSettings,
    address: str | None,
    console: Console,
    log_json: bool = False,
    limit: Limit | None = None,
    optuna_storage: str = "",
) -> Summary:
    """Run what the study lacks and show its map; MLflow being away delays nothing but MLflow.

    ``log_json`` prints the log of trials on stderr, too. ``optuna_storage`` is the URL of an Optuna storage, which
    shows finished trials as well. A ``limit`` on the cost ends the session as Ctrl-C does.
    Raises what ``plan``, ``check_batches``, ``check_data``, ``Ledger.driver`` and ``drive`` raise, and LimitError when
    the limit was reached before.
    """
    # Ray and torch take seconds to load: only training pays for them.
    from isoloss.run import cluster
    from isoloss.run.driver import check_batches, check_data, drive
    from isoloss.run.metrics import Metrics
    from isoloss.run.trial_log import TrialLog
    from isoloss.track.publish import TrackError, publish
    from isoloss.track.tracker import Tracker

    check_batches(study, settings)
    check_data(study, Path(settings.train.data))
    with _opened(study, state, settings.train.arithmetic, settings.train.device, console) as (book, progress):
        metrics: Metrics | None = None
        costs = Costs(settings.train.device) if limit is None else _costs(book, settings.train, state)
        spending = Spending(book, settings, limit, costs)
        if book.done < book.plan.total:
            spending.check()
            # First, so that a cluster that is too small leaves no trace.
            cluster.connect(address)
            cluster.require_room(settings)
            metrics = Metrics(book)
            book.watchers.append(metrics)
        tracker = Tracker(study, book.ledger, state.tracking_uri)
        echo = sys.stderr if log_json else None
        trial_log = TrialLog(study, book.ledger, state.log(study.name), book.claims, echo)
        stored = _stored(study, book.ledger, optuna_storage) if optuna_storage else None
        book.watchers += [spending, tracker, trial_log, *([stored] if stored else [])]
        book.allows = spending.allows

        def tick(book: Book) -> None:
            progress.tick(book)
            spending.tick(book)
            if metrics is not None:
                metrics.tick(book)

        try:
            summary = drive(book, settings, address, tick)
        finally:
            spending.close()
            trial_log.close(LAST_TRY_SECONDS)
            not_stored = stored.close(LAST_TRY_SECONDS) if stored else ""
            tracked = tracker.close(LAST_TRY_SECONDS)
    if summary.interrupted:
        summary = replace(summary, stopped=spending.message)
    written = _show(study, book.ledger, state, console)
    try:
        if tracked.error:
            raise TrackError(tracked.error)
        published = publish(study, book.ledger, state.tracking_uri, written.surface_png.parent)
        if published.error:
            raise TrackError(published.error)
        if state.tracking_uri.startswith("http"):
            console.print(f"mlflow:  {tracked.link()}", soft_wrap=True)
        else:
            console.print(f"mlflow:  {_command('ui', study, state)}", soft_wrap=True)
    except TrackError as error:
        later = _command("publish", study, state)
        console.print(f"MLflow lacks the last results ({error}); later: {later}", soft_wrap=True)
    if not_stored:
        lacks = f"the Optuna storage lacks the last results ({not_stored}); later: the same command"
        console.print(lacks, soft_wrap=True)
    for line in _closing(summary):
        console.print(line, soft_wrap=True)
    return summary


def simulate_session(
    study: Study, state: State, source: Source, settings: Simulation, console: Console | None
) -> Simulated:
    """Simulate what the study lacks and show its map, without MLflow; without a console nothing is drawn or said.

    Raises what ``plan``, ``Ledger.driver`` and ``source`` raise.
    """
    shown = console or Console(quiet=True, force_terminal=False)
    with _opened(study, state, {"simulated": source.name}, "cpu", shown) as (book, progress):
        summary = simulate(book, source, settings, progress.tick)
    if console is None:
        return summary
    _show(study, book.ledger, state, console)
    done = f"{summary.done} of {summary.total} trials"
    hours = f"{summary.virtual_seconds / 3600:.3g} virtual hours on {settings.slots} slots"
    used = "nothing was left to do" if summary.utilisation is None else f"{summary.utilisation:.1%} of their time used"
    console.print(f"simulated from {source.name}: {done}; {hours}, {used}", soft_wrap=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.outcomes.items())
    console.print(f"outcomes: {counts}", soft_wrap=True)
    if summary.farthest:
        console.print(f"nearest cells stood in, up to {summary.farthest:.3g} of an axis's length away", soft_wrap=True)
    for line in _closing(summary):
        console.print(line, soft_wrap=True)
    return summary


@contextmanager
def _opened(
    study: Study, state: State, arithmetic: dict[str, Any], device: str, console: Console
) -> Iterator[tuple[Book, Progress]]:
    """Hold a study's ledger, and yield its book and the progress that watches it."""
    proposals = plan(study)
    ledger = state.ledger(study.name)
    with (
        ledger.driver(study, arithmetic),
        Progress(console, _expected(study, ledger, device)) as progress,
    ):
        yield Book(study, proposals, ledger, [progress]), progress


def draw(study: Study, ledger: Ledger, state: State, console: Console | None) -> Written:
    """Write the report of a study into the state folder, and print its map on ``console``."""
    from isoloss.analysis.surface import waiting_table
    from isoloss.analysis.table import trials_table
    from isoloss.report.terminal import terminal_map
    from isoloss.report.write import write_report

    written = write_report(study, ledger, state.report(study.name))
    if console is not None:
        trials, waiting = trials_table(study, ledger), waiting_table(study, ledger)
        paired, ratios = (written.tables.get(name) for name in ("paired", "tokens_to_loss"))
        terminal_map(study, trials, console, waiting, written.findings, paired, ratios)
    return written


def _stored(study: Study, ledger: Ledger, url: str) -> StorageWatcher:
    from isoloss.run.storage_watcher import StorageWatcher  # loads Optuna

    return StorageWatcher(study, ledger, url)


def _show(study: Study, ledger: Ledger, state: State, console: Console) -> Written:
    """Write the report, print the map, and say where the rest of it is."""
    written = draw(study, ledger, state, console)
    console.print(f"picture: {_shown(written.boundary_png or written.surface_png)}", soft_wrap=True)
    console.print(f"report:  {_shown(written.report_html)}", soft_wrap=True)
    return written


def _costs(book: Book, settings: Settings, state: State) -> Costs:
    """Return what is known of the cost of a study's trials."""
    costs = Costs(settings.device, known(state.folder, settings))
    done = book.ledger.finished()
    trials = [trial for _, _, trial in members(book.study, book.ledger.claims()) if trial.key in done]
    for trial, taken in whole_budgets(book.ledger, trials, settings.device):
        costs.learn(trial, taken)
    return costs


def _expected(study: Study, ledger: Ledger, device: str) -> dict[str, float]:
    """Predicted seconds of the trials still to run, where the search knows them beforehand."""
    if not isinstance(study.search, (Grid, Random)):
        return {}
    done = ledger.finished()
    speed = fit([], device)
    return {trial.key: seconds(trial, speed) for _, trial in listed_trials(study) if trial.key not in done}


def _closing(summary: Summary) -> list[str]:
    lines = [f"given up: trial {key}: {why}" for key, why in summary.gave_up.items()]
    if summary.stopped:
        lines.append(summary.stopped)
    elif summary.interrupted or summary.gave_up:
        lines.append(f"{summary.done} of {summary.total} trials have a result; run the same command to go on")
    return lines


def _command(verb: str, study: Study, state: State) -> str:
    """Return a command to paste: with its path where the virtual environment is not on the user's."""
    program = "isoloss" if shutil.which("isoloss") else _shown(Path(sys.executable).with_name("isoloss"))
    option = "" if state.folder == Path(".isoloss").absolute() else f" --state {_shown(state.folder)}"
    if state.ledgers != str(state.folder / "ledger"):
        option += f" --ledger {shlex.quote(state.ledgers)}"  # an address may have parameters
    return f"{program} {verb} {study.name}{option}"


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
