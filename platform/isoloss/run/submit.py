"""Submitting a study to a Ray cluster as a job: what ``ray job submit`` does, with package, study and options set."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import isoloss
from isoloss.errors import IsolossError
from isoloss.run.token import show_token

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

NO_AGENT, AGENT_SECONDS = "No available agent", 60.0
"""What Ray answers while no node can take a job, and how long a job waits for one."""

LEFT_BEHIND = (".isoloss", ".venv", "venv", ".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
"""Folders that do not travel with a study."""

MOST_BYTES = 100 * 2**20
"""What Ray's dashboard takes."""

STOP = {"RAY_JOB_STOP_SIGNAL": "SIGINT", "RAY_JOB_STOP_WAIT_TIME_S": "60"}
"""A stopped job ends as after Ctrl-C, its trials at a checkpoint and its map drawn, instead of being killed."""

STUDY = "isoloss_study"


class SubmitError(IsolossError):
    """The job could not be submitted; the message says why."""


def submit_study(
    where: str,
    name: str,
    address: str,
    options: list[str],
    environment: Mapping[str, str],
    follow: bool,
    console: Console,
) -> bool:
    """Submit ``isoloss run`` of a study file to the cluster whose dashboard is at ``address``.

    The study file's folder becomes the job's working folder and this package travels with it. ``name`` is the study's,
    by which ``jobs_of`` finds the job. Returns whether the job succeeded, or True at once when it is not followed.
    Raises SubmitError when the cluster cannot be reached or refuses, or the folder is too large to travel.
    """
    path, colon, variant = where.partition(":")
    file = Path(path).absolute()
    _check_size(file.parent)
    client = _client(address)
    job = _submitted(
        client,
        address,
        ["run", f"{file.name}{colon}{variant}", *options],
        {"working_dir": str(file.parent), "excludes": list(LEFT_BEHIND), "env_vars": {**environment, **STOP}},
        {STUDY: name},
    )
    console.print(f"job {job} on {address}\nstop it with: ray job stop --address {address} {job}", soft_wrap=True)
    if not follow:
        return True
    status = _followed(client, job)
    console.print(f"job {job}: {status}")
    return status == "succeeded"


def ask_cluster(address: str, arguments: list[str], environment: Mapping[str, str]) -> bool:
    """Run an ``isoloss`` command on the cluster, print what it prints, and return whether it succeeded.

    Raises SubmitError when the cluster cannot be reached or refuses.
    """
    client = _client(address)
    job = _submitted(client, address, arguments, {"env_vars": {**environment}}, {})
    return _followed(client, job) == "succeeded"


def jobs_of(name: str, address: str) -> list[str]:
    """Return a line on each job that was submitted for the study of this name, the latest last.

    Raises SubmitError when the cluster cannot be reached or refuses.
    """
    try:
        found: list[JobDetails] = [
            job for job in _client(address).list_jobs() if (job.metadata or {}).get(STUDY) == name and job.submission_id
        ]
    except (ConnectionError, RuntimeError) as error:
        raise SubmitError(f"cannot list the jobs of {address}: {error}") from None
    found.sort(key=lambda job: job.start_time or 0)
    return [
        f"job {job.submission_id}: {job.status.value.lower()}, submitted "
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime((job.start_time or 0) / 1000))}"
        for job in found
    ]


def _client(address: str) -> JobSubmissionClient:
    show_token()
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (AuthenticationError, ConnectionError, RuntimeError, ValueError) as error:
        raise SubmitError(f"cannot submit to {address}: {error}") from None


def _submitted(
    client: JobSubmissionClient,
    address: str,
    arguments: list[str],
    runtime_env: dict[str, Any],
    metadata: dict[str, str],
) -> str:
    """Submit a command; a cluster that has just started answers before it can take one."""
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            return str(
                client.submit_job(
                    submission_id=f"isoloss-{metadata.get(STUDY, arguments[0])}-{uuid.uuid4().hex[:8]}",
                    entrypoint=shlex.join(["python", "-m", "isoloss", *arguments]),
                    runtime_env={"py_modules": [str(Path(isoloss.__file__).parent)], **runtime_env},
                    metadata=metadata,
                )
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            if NO_AGENT not in str(error) or time.monotonic() > deadline:
                raise SubmitError(f"cannot submit to {address}: {error}") from None
            time.sleep(1)


def _followed(client: JobSubmissionClient, job: str) -> str:
    """Print a job's log until it ends, and return its status."""

    async def follow() -> None:
        async for lines in client.tail_job_logs(job):
            print(lines, end="", flush=True)

    asyncio.run(follow())
    return str(client.get_job_status(job).value).lower()


def _check_size(folder: Path) -> None:
    sizes = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_BEHIND]
        for name in files:
            path = Path(where, name)
            if path.is_file():
                sizes[path.relative_to(folder)] = path.stat().st_size
    total = sum(sizes.values())
    if total > MOST_BYTES and not any((folder / name).exists() for name in (".gitignore", ".rayignore")):
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        told = ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MiB)" for path in largest)
        raise SubmitError(
            f"the study's folder {folder} travels with the job and holds {total / 2**20:.0f} MiB, more than Ray takes "
            f"({MOST_BYTES // 2**20} MiB); the largest files are {told}: move the study file into a folder of its own, "
            "or list what stays behind in a .rayignore there"
        )
