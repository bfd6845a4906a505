"""Errors that a person can mend: each is one message, and the command line's exit code for its kind."""

from __future__ import annotations


class IsolossError(Exception):
    """Something that the user asked for cannot be had; the message says why and what would be accepted."""

    exit_code = 3


class UsageError(IsolossError):
    """What the user wrote cannot be used as it is: a study, its search or its settings."""

    exit_code = 2
