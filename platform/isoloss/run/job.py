"""What a submitted job is given by its environment: the versions it was submitted with, and the names of its secrets.

Ray shows a job's environment to everybody who sees its dashboard, so a secret's value must never be in it: the machines
of the cluster hold it under the same name, and a job that does not find it says so before anything is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from isoloss.checkup import versions, without_build
from isoloss.errors import IsolossError, UsageError

VERSIONS, SECRETS = "ISOLOSS_SUBMITTED_WITH", "ISOLOSS_SECRETS"

PINNED = ("python", "ray", "torch", "optuna")
"""What decides whether a job starts at all, a trial's numbers, and where the next trial goes."""

SETTINGS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")
"""No secrets: where a bucket is."""


class JobError(IsolossError):
    """The cluster is not what the job was submitted for; the message says where they differ."""


def job_environment(secrets: list[str], pinned: bool) -> dict[str, str]:
    """Return the environment of a job that is submitted from here.

    ``secrets`` are names of variables; ``pinned``: the cluster must have this machine's versions. Raises UsageError for
    what is no variable's name.
    """
    for name in secrets:
        if not name.isidentifier():
            raise UsageError(
                "--secret takes the name of a variable that the cluster's machines have, such as "
                "AWS_SECRET_ACCESS_KEY, and never its value"
            )
    environment = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    if secrets:
        environment[SECRETS] = ",".join(secrets)
    if pinned:
        environment[VERSIONS] = json.dumps(_pinned())
    return environment


def check_job(environment: Mapping[str, str] = os.environ) -> None:
    """Raise JobError when this is a submitted job whose machine lacks a secret or has other versions."""
    missing = [name for name in filter(None, environment.get(SECRETS, "").split(",")) if not environment.get(name)]
    if missing:
        raise JobError(
            f"the cluster's machines lack {', '.join(missing)}: set it in their environment (infra/ says how), since "
            "secrets are never sent with a job"
        )
    wanted: dict[str, str] = json.loads(environment.get(VERSIONS, "{}"))
    here = _pinned()
    other = [f"{name} {here[name]}, not {want}" for name, want in wanted.items() if here[name] != want]
    if other:
        raise JobError(
            f"the cluster has {'; '.join(other)} as where the study was submitted: install the same there, submit from "
            "a machine that has the same, or say --any-versions"
        )


def check_public(words: list[str]) -> None:
    """Raise UsageError for a command with a password in an address, since a job's command is shown and recorded."""
    for word in words:
        if urlsplit(word).password:
            raise UsageError(
                f"an address must not hold a password ({word.partition('://')[0]}://…), since a job's command is shown "
                "in Ray's dashboard: set variables on the cluster, such as MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, and name them with --secret"
            )


def _pinned() -> dict[str, str]:
    """Return the versions that count here, Python's without its patch level, which changes nothing that counts."""
    here = {name: without_build(version) for name, version in versions().items() if name in PINNED}
    return {**here, "python": here["python"].rpartition(".")[0]}
