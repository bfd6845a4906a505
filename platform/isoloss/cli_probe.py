"""The ``isoloss probe`` command: what a public model's head does to its gradients, from its weights and some text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoloss.options import STATE, Device, Dtype, StateFolder, TrackingUri
from isoloss.output import console

if TYPE_CHECKING:
    from isoloss.probe.public import Progress


def probe(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, or a name on the Hugging Face hub: EleutherAI/pythia-70m.")
    ],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILE", help="Documents: .parquet, .jsonl(.gz) or .txt, a folder or a quoted pattern; repeatable."
        ),
    ],
    text: Annotated[str, typer.Option(metavar="COLUMN", help="The column or field that holds the text.")] = "text",
    documents: Annotated[int, typer.Option(min=1, help="Documents at most.")] = 10_000,
    tokens: Annotated[int | None, typer.Option(min=1, help="Scored tokens at most.")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Positions of a window; else 1,024, or fewer if the model has fewer.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows at a time.")] = 8,
    revision: Annotated[str, typer.Option(help="A commit, tag or branch of the model on the hub.")] = "main",
    device: Annotated[Device, typer.Option(help="Where the model is measured.")] = Device.cpu,
    dtype: Annotated[Dtype, typer.Option(help="Precision of the model's weights and activations.")] = Dtype.float32,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every figure here.")] = None,
    state: StateFolder = STATE,
    tracking_uri: TrackingUri = "",
) -> None:
    """Measure a public model on text: gradient survival, loss, and spectra of its head and hidden states."""
    from isoloss.data.files import write_json
    from isoloss.probe.public import describe, measure
    from isoloss.probe.public_model import load_model
    from isoloss.probe.public_text import documents as documents_of
    from isoloss.report.probe import facts_of, probe_text
    from isoloss.run.state import State
    from isoloss.track.probe import ProbeExperiment

    public = load_model(model, revision, dtype.value, device.value)
    experiment = ProbeExperiment.open(State(state, tracking_uri).tracking_uri)  # before the long part, not after it
    texts = islice(documents_of(data, text), documents)
    with _progress(documents, tokens) as progress:
        measured = measure(public, texts, length=length, batch=batch, tokens=tokens, progress=progress)
    params = {**describe(public, measured), "data": ", ".join(data)}
    out = console()
    out.print(probe_text(params, measured.figures()))
    out.print()
    if json_file is not None:
        write_json(json_file, facts_of(params, measured.figures()))
        out.print(f"figures: {json_file}", soft_wrap=True, markup=False)
    run_id = experiment.record(model, params, measured.figures(), measured.table())
    out.print(f"mlflow:  {experiment.link(run_id) or 'isoloss ui'}", soft_wrap=True, markup=False)


@contextmanager
def _progress(documents: int, tokens: int | None) -> Iterator[Progress]:
    """Draw how far a measurement is, where the console is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    out = console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("the first tokens", total=1.0)

        def show(done_documents: int, done_tokens: int) -> None:
            share = max(done_documents / documents, done_tokens / tokens if tokens else 0.0)
            bar.update(task, completed=share, description=f"{done_documents:,} documents, {done_tokens:,} tokens")

        yield show
