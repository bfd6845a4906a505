"""Submitting a study to a Ray cluster as a job: what ``ray job submit`` does, with package, study and options set."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import isoloss
from isoloss.errors import IsolossError
from isoloss.run.token import show_token

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

NO_AGENT, AGENT_SECONDS = "No available agent", 60.0
"""What Ray answers while no node can take a job, and how long a job waits for one."""


class SubmitError(IsolossError):
    """The job could not be submitted; the message says why."""


def submit_study(where: str, address: str, options: list[str], follow: bool, console: Console) -> bool:
    """Submit ``isoloss run`` of a study file to the cluster whose dashboard is at ``address``.

    The study file's folder becomes the job's working folder and this package travels with it. Returns whether the job
    succeeded, or True at once when it is not followed. Raises SubmitError when the cluster cannot be reached or
    refuses.
    """
    show_token()
    from ray.job_submission import JobStatus, JobSubmissionClient

    path, colon, variant = where.partition(":")
    file = Path(path)
    command = ["python", "-m", "isoloss", "run", f"{file.name}{colon}{variant}", *options]
    try:
        client = JobSubmissionClient(address)
        job = _submitted(
            client,
            entrypoint=shlex.join(command),
            runtime_env={
                "working_dir": str(file.absolute().parent),
                "py_modules": [str(Path(isoloss.__file__).parent)],
                # A stopped job ends as after Ctrl-C, with its map drawn, instead of being killed.
                "env_vars": {"RAY_JOB_STOP_SIGNAL": "SIGINT", "RAY_JOB_STOP_WAIT_TIME_S": "60"},
            },
            metadata={"isoloss_study": where},
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SubmitError(f"cannot submit to {address}: {error}") from None
    console.print(f"job {job} on {address}\nstop it with: ray job stop --address {address} {job}", soft_wrap=True)
    if not follow:
        return True
    asyncio.run(_follow(client, job))
    status = client.get_job_status(job)
    console.print(f"job {job}: {status.value.lower()}")
    return bool(status == JobStatus.SUCCEEDED)


def _submitted(client: JobSubmissionClient, **job: Any) -> str:
    """Submit the job; a cluster that has just started answers before it can take one."""
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            return str(client.submit_job(**job))
        except RuntimeError as error:
            if NO_AGENT not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(1)


async def _follow(client: object, job: str) -> None:
    async for lines in client.tail_job_logs(job):  # type: ignore[attr-defined]
        print(lines, end="", flush=True)
