"""The card of a prepared corpus: what a study needs to know of it, as one small file beside its shards."""

from __future__ import annotations

import os
from pathlib import Path

from isoloss.config.base import is_name
from isoloss.config.tasks import Prepared
from isoloss.errors import UsageError

CARD = "card.json"
"""Its existence says that a corpus is prepared; it is written last."""

ENVIRONMENT = "ISOLOSS_DATA"


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
    folder = data_folder() / name
    if not is_name(name) or not (folder / CARD).is_file():
        raise DataError(
            f"no corpus {name!r} is prepared in {folder.parent}; prepare it with `isoloss data prepare`, or set "
            f"{ENVIRONMENT} to the folder that has it"
        )
    return Prepared.model_validate_json((folder / CARD).read_text())
