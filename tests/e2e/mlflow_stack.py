"""MLflow as ``infra/mlflow`` deploys it, without containers: PostgreSQL, an object store, and the server's own start.

Settings and secrets come from ``compose.yaml``, ``make-secrets.sh`` and ``init.sql``; addresses are this machine's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from command import free_port

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra" / "mlflow"
BINARIES = "/usr/lib/postgresql/*/bin"
"""Where Debian puts what PostgreSQL's servers are made of."""

PATIENCE_SECONDS = 120.0


@dataclass
class Service:
    """A process with those below it, and where it writes its log."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdout=log, stderr=log, cwd=self.log.parent, start_new_session=True
            )

    def wait_for(self, address: str) -> None:
        """Wait until the service answers an HTTP request."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                return
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, f"{address} did not answer in time: {self.log.read_text()}"
                time.sleep(0.1)

    def kill(self) -> None:
        """Kill -9 the service and every process that it started."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class Stack:
    """The running server, what it stands on, and the folder of its secrets."""

    url: str
    server: Service
    secrets: Path
    database: dict[str, str]
    store: str

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text()

    def restart(self) -> None:
        self.server.start()
        self.server.wait_for(f"{self.url}/health")


@contextmanager
def stack(folder: Path) -> Iterator[Stack]:
    """Start everything in ``folder``, and end it."""
    secrets = folder / "secrets"
    subprocess.run([INFRA / "make-secrets.sh", secrets], check=True)
    with ExitStack() as undo:
        store_port = free_port()
        store_command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(store_port)]
        store = Service(store_command, dict(os.environ), folder / "store.log")
        store.start()
        undo.callback(store.kill)
        database = undo.enter_context(postgres(secrets))
        store_url = f"http://127.0.0.1:{store_port}"
        store.wait_for(store_url)
        port = free_port()
        addresses = {
            **database,
            "MLFLOW_S3_ENDPOINT_URL": store_url,
            "MLFLOW_HOST": "127.0.0.1",
            "MLFLOW_PORT": str(port),
            "MLFLOW_SERVER_ALLOWED_HOSTS": f"127.0.0.1:{port}",
        }
        environment = {**bare_environment(), **deployed_settings(secrets), **addresses}
        server = Service([sys.executable, str(INFRA / "serve.py")], environment, folder / "server.log")
        started = Stack(f"http://127.0.0.1:{port}", server, secrets, database, store_url)
        undo.callback(server.kill)
        started.restart()
        yield started


def deployed_settings(secrets: Path) -> dict[str, str]:
    """Return the environment that compose.yaml gives the server, with the secrets of a folder."""
    service = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]["mlflow"]
    return {name: value.replace("/run/secrets", str(secrets)) for name, value in service["environment"].items()}


def bare_environment() -> dict[str, str]:
    """Return this process's environment without what would change the server's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "AWS_", "PG"))}


@contextmanager
def postgres(secrets: Path) -> Iterator[dict[str, str]]:
    """Start PostgreSQL with MLflow's databases, as compose.yaml does; yield PGHOST and PGPORT."""
    binaries = postgres_binaries()
    with tempfile.TemporaryDirectory(prefix="isoloss-postgres-") as name:
        folder = Path(name)
        for secret in ("postgres-password", "database-password"):
            shutil.copy(secrets / secret, folder)
        prefix: list[str] = []
        if os.getuid() == 0:  # PostgreSQL refuses to be run by root
            shutil.chown(folder, "postgres", "postgres")
            prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        data, port = folder / "data", free_port()
        clean = bare_environment()
        options = ["--username=postgres", f"--pwfile={folder}/postgres-password", "--auth=scram-sha-256"]
        subprocess.run(
            [*prefix, binaries / "initdb", f"--pgdata={data}", "--data-checksums", "--no-sync", *options],
            check=True, capture_output=True, env=clean, cwd=folder,
        )  # fmt: skip
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        server = Service(
            [*prefix, str(binaries / "postgres"), "-D", str(data), "-p", str(port), *settings],
            clean, folder / "postgres.log",
        )  # fmt: skip
        server.start()
        try:
            address = {"PGHOST": "127.0.0.1", "PGPORT": str(port)}
            ready = [str(binaries / "pg_isready"), "--quiet"]
            deadline = time.monotonic() + PATIENCE_SECONDS
            while subprocess.run(ready, env={**clean, **address}).returncode:
                assert time.monotonic() < deadline, server.log.read_text()
                time.sleep(0.05)
            owner = {
                "PGUSER": "postgres",
                "PGPASSWORD": (secrets / "postgres-password").read_text(),
                "MLFLOW_DATABASE_PASSWORD_FILE": str(folder / "database-password"),
            }
            psql = [binaries / "psql", "--quiet", "--no-psqlrc", f"--file={INFRA}/init.sql", "postgres"]
            subprocess.run(psql, check=True, env={**clean, **address, **owner})
            yield address
        finally:
            assert server.process is not None
            server.process.send_signal(signal.SIGQUIT)  # at once; killed, it would leave its memory behind
            server.process.wait(30)


def postgres_binaries() -> Path:
    """Return the folder of PostgreSQL's programs; fails where Debian's package is not installed."""
    found = sorted(Path("/").glob(BINARIES.lstrip("/")), key=lambda path: int(path.parent.name))
    assert found, f"no PostgreSQL in {BINARIES}: apt-get install postgresql"
    return found[-1]
