"""Study files: a Python file that defines ``study``, or functions that return variants of it."""

from __future__ import annotations

import importlib.util
import inspect
import traceback
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from isoloss.config.base import messages
from isoloss.errors import UsageError
from isoloss.study import Study


class StudyFileError(UsageError):
    """A study file cannot be used; the message names the file, the line and what would be accepted."""


def load_study(where: str) -> Study:
    """Return the study of ``path/to/file.py`` or, after a colon, of one of its names or functions.

    Raises StudyFileError when the file is missing, does not run, or defines no such study.
    """
    path, _, name = where.partition(":")
    module = _load(Path(path))
    if not name and not hasattr(module, "study"):
        raise StudyFileError(f"{path} defines no `study`; {_offer(path, module)}")
    found = getattr(module, name or "study", None)
    if callable(found) and not isinstance(found, Study):
        found = _call(path, name, found)
    if not isinstance(found, Study):
        raise StudyFileError(f"{path} defines no study {name!r}; {_offer(path, module)}")
    return found


def _load(path: Path) -> ModuleType:
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
        raise StudyFileError(_explain(str(path), error)) from None
    return module


def _call(path: str, name: str, function: object) -> object:
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
    if isinstance(error, ValidationError):
        return f"{where}: {error.title}: {messages(error)}"
    return f"{where}: {type(error).__name__}: {error}"


def _offer(path: str, module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, Study)
        or (inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"))
    ]
    if not names:
        return "give it a line `study = Study(...)`"
    return "it has " + ", ".join(f"{path}:{name}" for name in names)
