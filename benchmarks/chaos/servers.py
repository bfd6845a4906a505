"""The servers that a run leans on, as processes that can be killed and stopped: MLflow's, and an object store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from command import free_port, until


class Server:
    """A server on loopback, started again on the same port after it was killed."""

    def __init__(self, name: str, command: list[str], port: int, health: str, log: Path, environment: dict[str, str]):
        self.name, self.command, self.log, self.environment = name, command, log, environment
        self.url = f"http://127.0.0.1:{port}"
        self.health = f"{self.url}/{health}"
        self.start()

    def start(self) -> None:
        """Start the process; ``wait`` says when it answers."""
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.environment, cwd=self.log.parent, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until the server answers."""
        until(self._answers, f"{self.name} did not start; see {self.log}", 120)

    def kill(self) -> None:
        """Kill -9 the server with the processes that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Stop the server where it is (SIGSTOP): connections are taken, and never answered."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped server go on."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.health, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False


def mlflow_server(folder: Path, environment: dict[str, str]) -> Server:
    """Start MLflow's server on a SQLite file."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-hosts", f"127.0.0.1:{port}", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--artifacts-destination", str(folder / "mlartifacts")),
    ]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return Server("MLflow", command, port, "health", folder / "mlflow.log", {**environment, **quiet})


def object_store(folder: Path, environment: dict[str, str]) -> Server:
    """Start an S3 that keeps its objects in memory: it may be stopped, and never killed."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return Server("the object store", command, port, "moto-api/", folder / "moto.log", environment)


def make_bucket(store: Server, environment: dict[str, str]) -> str:
    """Make a bucket, let ``environment`` hold what opens it, and return the address of ledgers in it."""
    import boto3

    keys = {"AWS_ACCESS_KEY_ID": "chaos", "AWS_SECRET_ACCESS_KEY": "chaos", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= keys  # of the process that watches
    environment |= {**keys, "AWS_ENDPOINT_URL": store.url}
    store.wait()
    client = boto3.client(
        "s3", endpoint_url=store.url, region_name="us-east-1", aws_access_key_id="chaos", aws_secret_access_key="chaos"
    )
    client.create_bucket(Bucket="chaos")
    return f"s3://chaos/ledgers?scheme=http&endpoint_override={store.url.removeprefix('http://')}"
