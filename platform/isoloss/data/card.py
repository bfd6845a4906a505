"""The card of a prepared corpus: what a study needs to know of it, as one small file beside its shards."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from isoloss.config.base import is_name, messages
from isoloss.config.tasks import Prepared
from isoloss.errors import UsageError

CARD = "card.json"
"""Its existence says that a corpus is prepared; it is written last."""

ENVIRONMENT = "ISOLOSS_DATA"


AGAIN = "delete the corpus's folder and prepare it again"


class DataError(UsageError):
    """A corpus cannot be used or prepared as asked; the message names the file, row or field."""


_state = Path(os.environ.get("ISOLOSS_STATE", ".isoloss"))


def use_state(folder: Path) -> None:
    """Look for prepared corpora in this state folder from now on, unless ``ISOLOSS_DATA`` says where they are."""
    global _state
    _state = folder


def data_folder() -> Path:
    """Return the folder of prepared corpora: ``ISOLOSS_DATA``, or ``data`` in the state folder."""
    return Path(os.environ.get(ENVIRONMENT) or _state / "data").absolute()


def prepared(name: str) -> Prepared:
    """Return the card of the corpus that was prepared under ``name`` in the data folder.

    Raises DataError when there is none.
    """
    return read_card(data_folder(), name)


def read_card(folder: Path, name: str) -> Prepared:
    """Return the card of a corpus in a data folder; raises DataError when there is none, or another isoloss's."""
    path = folder / name / CARD
    if not is_name(name) or not path.is_file():
        raise DataError(
            f"no corpus {name!r} is prepared in {folder}; prepare it with `isoloss data prepare`, or set "
            f"{ENVIRONMENT} to the folder that has it"
        )
    try:
        return Prepared.model_validate_json(path.read_text())
    except ValidationError as error:
        raise DataError(f"{path} cannot be read by this isoloss: {messages(error)}; {AGAIN}") from None


def card_text(data: Prepared) -> str:
    """Return a card as Python, to be written into a study."""
    fields = "".join(f"    {name}={value!r},\n" for name, value in data if name != "sizes")
    sizes = "".join(f"        {size!r},\n" for size in data.sizes)
    return f"Prepared(\n{fields}    sizes=(\n{sizes}    ),\n)"
