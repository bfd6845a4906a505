"""The ``isoloss data`` commands: prepare corpora, list and check them, and write a sample to try it with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from isoloss.options import ClusterAddress
from isoloss.output import AsJson, console, say

DIFFERS, INTERRUPTED = 1, 130

app = typer.Typer(
    help="Make token shards of text, for studies to train on.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", envvar="ISOLOSS_DATA", help="Folder of prepared corpora; without it, the state folder's data."
    ),
]


@app.command()
def prepare(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A Python file that declares a corpus: x.py, or x.py:variant.")
    ],
    data: DataFolder = None,
    pattern: Annotated[
        str, typer.Option("--from", help="Where the source files are on this machine, instead of where it is declared.")
    ] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Files at a time; without it, as many as CPUs.")] = None,
    address: ClusterAddress = "",
    as_json: AsJson = False,
) -> None:
    """Prepare a corpus. Run it again after any interruption: no file that is done is made again."""
    from isoloss.config.corpus import Files
    from isoloss.data.card import DataError
    from isoloss.report.corpus import corpus_text, facts_of
    from isoloss.run.prepare import prepare_on_ray
    from isoloss.study_file import load_corpus

    folder = _folder(data)
    corpus = load_corpus(file)
    if pattern:
        if not isinstance(corpus.source, Files):
            raise DataError(f"--from says where files are, and {corpus.name!r} comes from the hub")
        corpus = corpus.model_copy(update={"source": corpus.source.model_copy(update={"pattern": pattern})})
    try:
        card = prepare_on_ray(corpus, folder / corpus.name, address or None, workers, console(stderr=as_json))
    except KeyboardInterrupt:  # typer would end without a word
        console(stderr=True).print("isoloss: interrupted; run the same command to go on")
        raise typer.Exit(INTERRUPTED) from None
    facts = facts_of(folder / corpus.name)
    say(facts, as_json, lambda out: out.print(corpus_text(facts, card), soft_wrap=True, markup=False))


@app.command(name="ls")
def list_corpora(data: DataFolder = None, as_json: AsJson = False) -> None:
    """List the corpora in the data folder, finished or not."""
    from isoloss.report.corpus import corpora, line_of

    folder = _folder(data)
    found = corpora(folder)
    text = "\n".join(map(line_of, found)) or f"no corpus was prepared in {folder} yet"
    say(found, as_json, lambda out: out.print(text, soft_wrap=True, markup=False))


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a prepared corpus.")],
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Read all files of a prepared corpus again and name those that are not as they were made; exit code 1 if any."""
    from isoloss.data.manifest import check as differences

    folder = _folder(data) / name
    found = differences(folder)
    text = "\n".join(found) or f"{folder} is as it was prepared"
    say(found, as_json, lambda out: out.print(text, soft_wrap=True, markup=False))
    if found:
        raise typer.Exit(DIFFERS)


@app.command()
def sample(
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="The file to write.")],
    most_bytes: Annotated[int | None, typer.Option(min=1, help="Of text; without it, all there is.")] = None,
) -> None:
    """Write the docstrings of installed libraries as a file in FineWeb's schema, to try things without a network."""
    from isoloss.data.sample import write_sample

    size = write_sample(out, most_bytes)
    console().print(f"{out}: {size:,} bytes of text", soft_wrap=True, markup=False)


def _folder(data: Path | None) -> Path:
    """Return the data folder, and have study files that are loaded look there, too."""
    from isoloss.data.card import ENVIRONMENT, data_folder

    if data is not None:
        os.environ[ENVIRONMENT] = str(data)
    return data_folder()
