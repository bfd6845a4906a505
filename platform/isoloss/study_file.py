"""Study files: a Python file that defines ``study``, ``corpus``, or functions that return variants of them."""

from __future__ import annotations

import importlib.util
import inspect
import traceback
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from pydantic import ValidationError

from isoloss.config.base import messages
from isoloss.config.corpus import Corpus
from isoloss.data.card import DataError
from isoloss.errors import IsolossError, UsageError
from isoloss.study import Study

T = TypeVar("T")


class StudyFileError(UsageError):
    """A study file cannot be used; the message names the file, the line and what would be accepted."""


def load_study(where: str) -> Study:
    """Return the study of ``path/to/file.py`` or, after a colon, of one of its names or functions.

    Raises StudyFileError when the file is missing, does not run, or defines no such study.
    """
    return _find(where, "study", Study)


def load_corpus(where: str) -> Corpus:
    """Return the corpus that a study file defines, found as ``load_study`` finds its study and with the same errors."""
    return _find(where, "corpus", Corpus)


def _find(where: str, what: str, kind: type[T]) -> T:
    path, _, name = where.partition(":")
    module = _load(Path(path), name or what)
    if not name and not hasattr(module, what):
        raise StudyFileError(f"{path} defines no `{what}`; {_offer(path, module, what, kind)}")
    found = getattr(module, name or what, None)
    if callable(found) and not isinstance(found, kind):
        found = _call(path, found)
    if not isinstance(found, kind):
        raise StudyFileError(f"{path} defines no {what} {name!r}; {_offer(path, module, what, kind)}")
    return found


def _load(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise StudyFileError(f"there is no study file {path}")
    spec = importlib.util.spec_from_file_location("isoloss_study_file", path)
    if spec is None or spec.loader is None:
        raise StudyFileError(f"{path} is not a Python file; a study file ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise StudyFileError(f"{path}, line {error.lineno}: {error.msg}: {(error.text or '').strip()}") from None
    except Exception as error:
        # A corpus is prepared before the study below it finds it by `prepared`.
        if not (isinstance(error, DataError) and hasattr(module, name)):
            raise StudyFileError(_explain(str(path), error)) from None
    return module


def _call(path: str, function: object) -> object:
    try:
        return function()  # type: ignore[operator]
    except Exception as error:
        raise StudyFileError(_explain(path, error)) from None


def _explain(path: str, error: Exception) -> str:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == Path(path).resolve()
    ]
    where = f"{path}, line {lines[-1]}" if lines else path
    if isinstance(error, IsolossError):
        return f"{where}: {error}"
    if isinstance(error, ValidationError):
        return f"{where}: {error.title}: {messages(error)}"
    return f"{where}: {type(error).__name__}: {error}"


def _offer(path: str, module: ModuleType, what: str, kind: type[object]) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, kind)
        or (inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"))
    ]
    if not names:
        return f"give it a line `{what} = {kind.__name__}(...)`"
    return "it has " + ", ".join(f"{path}:{name}" for name in names)
