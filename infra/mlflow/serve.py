"""Starts MLflow's server as it is deployed: PostgreSQL, artifacts through the server, and a password for everything.

    python serve.py            serve until stopped
    python serve.py upgrade    bring the databases of an older MLflow to this one's tables, and end

Settings are environment variables, MLflow's own and libpq's (see README.md). A secret is the variable, or the file that
the variable with ``_FILE`` after its name names. Nothing starts, and one line says why, while a setting is missing, a
secret is one that everybody knows, or PostgreSQL or the object store cannot be used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DATABASES = ("mlflow", "mlflow_auth")
TRACKING, ACCOUNTS = (f"postgresql+psycopg2:///{name}" for name in DATABASES)
"""The databases; libpq takes host, port, user and password from PGHOST, PGPORT, PGUSER and PGPASSWORD, so that the
password is on no command line."""

SERVER_SECRETS = ("MLFLOW_AUTH_ADMIN_PASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY")
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""Without MLFLOW_S3_ENDPOINT_URL the store is Amazon's, which may give the machine itself a role instead of keys."""

LEAST_LENGTH = 12
KNOWN = ("password", "changeme", "admin", "postgres", "mlflow", "secret", "minio")
"""What passwords begin with that every attacker tries first; ``password1234`` was MLflow's own until 2026."""

DEFAULTS = {
    "MLFLOW_AUTH_ADMIN_USERNAME": "admin",
    "MLFLOW_AUTH_CONFIG_PATH": str(HERE / "basic_auth.ini"),
    "MLFLOW_ARTIFACTS_DESTINATION": "s3://mlflow",
    "MLFLOW_HOST": "0.0.0.0",
    "MLFLOW_PORT": "5000",
    "MLFLOW_WORKERS": "1",
    "AWS_DEFAULT_REGION": "us-east-1",
    # A page may show a report in a frame of its own, and no other site's page may.
    "MLFLOW_SERVER_X_FRAME_OPTIONS": "SAMEORIGIN",
    # Jobs are a dozen processes for language-model agents, which studies do not use.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class SettingsError(Exception):
    """A setting is missing or must not be used; the message says which, and what to do."""


def read_database_settings() -> None:
    """Complete what libpq needs; raises SettingsError, as all that follow do."""
    for name in ("PGHOST", "PGUSER"):
        if not os.environ.get(name):
            raise SettingsError(f"{name} is missing: it says where PostgreSQL is, and as whom to use it")
    read_secret("PGPASSWORD")


def read_server_settings() -> None:
    """Complete what the server needs beside a database."""
    for name in (*SERVER_SECRETS, *(STORE_KEYS if os.environ.get("MLFLOW_S3_ENDPOINT_URL") else ())):
        read_secret(name)
    hosts = os.environ.get("MLFLOW_SERVER_ALLOWED_HOSTS", "")
    if not hosts or "*" in hosts.split(","):
        raise SettingsError(
            "MLFLOW_SERVER_ALLOWED_HOSTS must name the addresses under which browsers and clients reach this server, "
            "such as mlflow.example.com,mlflow:5000; '*' would let any web page reach it through a browser"
        )
    if os.environ.get("MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE", "").lower() in ("true", "1"):
        raise SettingsError("MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE must not be set")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def read_secret(name: str) -> None:
    """Put a secret into the environment from the file that ``<name>_FILE`` names; refuse one that others may guess."""
    file = os.environ.get(f"{name}_FILE")
    if file is not None:
        try:
            os.environ[name] = Path(file).read_text().strip()
        except OSError as error:
            raise SettingsError(f"{name}_FILE names {file}, which cannot be read: {error.strerror}") from None
    value = os.environ.get(name, "")
    if not value:
        raise SettingsError(f"{name} is missing: set it, or {name}_FILE to a file that holds it (make-secrets.sh)")
    if len(value) < LEAST_LENGTH or value.lower().startswith(KNOWN):
        raise SettingsError(
            f"{name} is shorter than {LEAST_LENGTH} characters, or begins like one that everybody knows "
            f"({', '.join(KNOWN)}): make another, as make-secrets.sh does"
        )


def check_databases() -> None:
    """Make sure that both databases let us in."""
    import psycopg2

    for name in DATABASES:
        try:
            psycopg2.connect(dbname=name, connect_timeout=10).close()
        except psycopg2.OperationalError as error:
            reason = " ".join(str(error).split())
            raise SettingsError(f"PostgreSQL's database {name} cannot be used: {reason}") from None


def check_store() -> None:
    """Make sure that the bucket of artifacts is there, and make it where it is not."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    destination = os.environ["MLFLOW_ARTIFACTS_DESTINATION"]
    scheme, _, path = destination.partition("://")
    if scheme != "s3":
        raise SettingsError(
            f"MLFLOW_ARTIFACTS_DESTINATION must be s3://bucket or s3://bucket/prefix, not {destination}"
        )
    bucket = path.partition("/")[0]
    patient = Config(connect_timeout=5, read_timeout=10, retries={"max_attempts": 5, "mode": "standard"})
    try:
        store = boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL"), config=patient)
        try:
            store.head_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
            store.create_bucket(Bucket=bucket)
    except (BotoCoreError, ClientError) as error:
        raise SettingsError(f"the object store cannot be used for {destination}: {error}") from None


UVICORN = "--timeout-worker-healthcheck 120 --timeout-graceful-shutdown 20"
"""Its supervisor would kill a worker that is silent for five seconds, as each is that starts on a busy machine."""


def serve() -> None:
    """Become the server."""
    read_database_settings()
    read_server_settings()
    check_databases()
    check_store()
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"]
    command += ["--backend-store-uri", TRACKING, "--serve-artifacts", "--uvicorn-opts", UVICORN]
    os.execv(sys.executable, command)


def upgrade() -> None:
    """Bring both databases to the tables of the installed MLflow."""
    read_database_settings()
    check_databases()
    mlflow = [sys.executable, "-m", "mlflow"]
    subprocess.run([*mlflow, "db", "upgrade", TRACKING], check=True)
    subprocess.run([sys.executable, "-m", "mlflow.server.auth", "db", "upgrade", "--url", ACCOUNTS], check=True)


def main() -> None:
    """Serve or upgrade, as the command line says."""
    actions = {(): serve, ("upgrade",): upgrade}
    action = actions.get(tuple(sys.argv[1:]))
    if action is None:
        sys.exit(f"usage: {sys.argv[0]} [upgrade]")
    try:
        action()
    except SettingsError as error:
        sys.exit(f"serve.py: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
