"""One session of a study, from the command to the map: drive it, draw it, publish it, say what came of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from isoloss.run import cluster
from isoloss.run.book import Book
from isoloss.run.cost import fit, seconds
from isoloss.run.driver import Summary, check_batches, drive
from isoloss.run.ledger import Ledger
from isoloss.run.progress import Progress
from isoloss.run.settings import RunSettings
from isoloss.run.state import State
from isoloss.search.plan import plan
from isoloss.study import Study

if TYPE_CHECKING:
    from isoloss.report.write import Written

LAST_TRY_SECONDS = 30.0
"""How long the end of a session waits for MLflow."""


def run_session(study: Study, state: State, settings: RunSettings, address: str | None, console: Console) -> Summary:
    """Run what the study lacks and show its map; MLflow being away delays nothing but MLflow.

    Raises what ``plan``, ``check_batches``, ``Ledger.driver`` and ``drive`` raise.
    """
    from isoloss.track.publish import TrackError, publish
    from isoloss.track.tracker import Tracker

    proposals = plan(study)
    check_batches(study, settings.workers_per_slot)
    ledger = state.ledger(study.name)
    with (
        ledger.driver(study, settings.train.arithmetic),
        Progress(console, _expected(study, ledger, settings)) as progress,
    ):
        book = Book(study, proposals, ledger)
        if book.done < proposals.total:
            # First, so that a cluster that is too small leaves no trace.
            cluster.connect(address)
            cluster.fit_slots(settings)
        tracker = Tracker(study, ledger, state.tracking_uri)
        book.watchers += [progress, tracker]
        try:
            summary = drive(book, settings, address, progress.tick)
        finally:
            tracked = tracker.close(LAST_TRY_SECONDS)
    written = draw(study, ledger, state, console)
    console.print(f"picture: {_shown(written.surface_png)}", soft_wrap=True)
    console.print(f"pages:   {_shown(written.surface_png.parent)}", soft_wrap=True)
    try:
        if tracked.error:
            raise TrackError(tracked.error)
        publish(study, ledger, state.tracking_uri, written.surface_png.parent)
        if state.tracking_uri.startswith("http"):
            console.print(f"mlflow:  {tracked.link()}", soft_wrap=True)
        else:
            console.print(f"mlflow:  {_command('ui', study, state)}", soft_wrap=True)
    except TrackError as error:
        later = _command("publish", study, state)
        console.print(f"MLflow lacks the last results ({error}); later: {later}", soft_wrap=True)
    for line in _closing(summary):
        console.print(line, soft_wrap=True)
    return summary


def draw(study: Study, ledger: Ledger, state: State, console: Console | None) -> Written:
    """Write the report of a study into the state folder, and print its map on ``console``."""
    from isoloss.analysis.surface import waiting_table
    from isoloss.analysis.table import trials_table
    from isoloss.report.terminal import terminal_map
    from isoloss.report.write import write_report

    written = write_report(study, ledger, state.report(study.name))
    if console is not None:
        terminal_map(study, trials_table(study, ledger), console, waiting_table(study, ledger))
    return written


def _expected(study: Study, ledger: Ledger, settings: RunSettings) -> dict[str, float]:
    """Predicted seconds of the trials still to run, where the search knows them beforehand."""
    from isoloss.config.search import Optuna
    from isoloss.search.plan import listed_trials

    if isinstance(study.search, Optuna):
        return {}
    done = ledger.finished()
    speed = fit([], settings.train.device)
    return {trial.key: seconds(trial, speed) for _, trial in listed_trials(study) if trial.key not in done}


def _closing(summary: Summary) -> list[str]:
    lines = [f"given up: trial {key}: {why}" for key, why in summary.gave_up.items()]
    if summary.interrupted or summary.gave_up:
        lines.append(f"{summary.done} of {summary.total} trials have a result; run the same command to go on")
    return lines


def _command(verb: str, study: Study, state: State) -> str:
    """Return a command to paste: with its path where the virtual environment is not on the user's."""
    program = "isoloss" if shutil.which("isoloss") else _shown(Path(sys.executable).with_name("isoloss"))
    option = "" if state.folder == Path(".isoloss").absolute() else f" --state {_shown(state.folder)}"
    return f"{program} {verb} {study.name}{option}"


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
