"""A server as ``infra/mlflow`` deploys it, with accounts, PostgreSQL and an object store, and isoloss as its client."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from mlflow_stack import INFRA, ROOT, Stack, bare_environment, postgres_binaries, stack

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_track_example import closed_address, filled, result, runs_by_name, study

from isoloss import Choice, Log, Study
from isoloss.cli import main
from isoloss.run.ledger import Ledger
from isoloss.track.client import TrackError, connect
from isoloss.track.publish import publish
from isoloss.track.tracker import Tracker

USERS = {"ada": "correct-horse-battery", "ben": "staple-paper-scissors"}
SMALL = {"task.vocab_size": Choice(64, 256), "optimizer.learning_rate": Log(1e-4, 1e-1, points=2)}
slow = pytest.mark.slow


# --- what is deployed


def serve_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serve", INFRA / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETTINGS = {
    "PGHOST": "database", "PGUSER": "mlflow", "PGPASSWORD": "b7" * 12,
    "MLFLOW_AUTH_ADMIN_PASSWORD": "a5" * 12, "MLFLOW_FLASK_SERVER_SECRET_KEY": "c9" * 12,
    "MLFLOW_SERVER_ALLOWED_HOSTS": "mlflow:5000",
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, ""),
        ({"PGPASSWORD": ""}, "PGPASSWORD is missing"),
        ({"PGHOST": ""}, "PGHOST is missing"),
        ({"MLFLOW_AUTH_ADMIN_PASSWORD": "password1234"}, "MLFLOW_AUTH_ADMIN_PASSWORD .* everybody knows"),
        ({"MLFLOW_AUTH_ADMIN_PASSWORD": "Zw7!kq"}, "MLFLOW_AUTH_ADMIN_PASSWORD is shorter than 12"),
        ({"MLFLOW_FLASK_SERVER_SECRET_KEY_FILE": "/nowhere/key"}, "names /nowhere/key, which cannot be read"),
        ({"MLFLOW_S3_ENDPOINT_URL": "http://store:8333"}, "AWS_ACCESS_KEY_ID is missing"),
        ({"MLFLOW_SERVER_ALLOWED_HOSTS": "*"}, "MLFLOW_SERVER_ALLOWED_HOSTS must name"),
        ({"MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true"}, "must not be set"),
    ],
)
def test_nothing_starts_with_a_setting_that_is_missing_or_unsafe(
    wrong: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, environment = serve_module(), {**SETTINGS, **wrong}
    monkeypatch.setattr(os, "environ", environment)
    expected = pytest.raises(serve.SettingsError, match=told) if told else nullcontext()
    with expected:
        serve.read_database_settings()
        serve.read_server_settings()
    if not told:
        assert environment["MLFLOW_SERVER_X_FRAME_OPTIONS"] == "SAMEORIGIN"


def test_secrets_are_made_once_and_only_their_owner_gets_to_them(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        done = subprocess.run([INFRA / "make-secrets.sh", tmp_path / "secrets"], check=True, capture_output=True)
        assert (done.stdout, done.stderr) == (b"", b"")
        made.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    assert made[0] == made[1]
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert min(map(len, made[0].values())) >= 20
    assert len(set(made[0].values())) == len(made[0]) == 7
    (identity,) = json.loads(made[0]["s3.json"])["identities"]
    keys = {"accessKey": made[0]["s3-access-key"], "secretKey": made[0]["s3-secret-key"]}
    assert identity["credentials"] == [keys]
    assert {action.partition(":")[2] for action in identity["actions"]} == {"mlflow"}  # its own bucket, no other


def test_compose_publishes_mlflow_alone_and_nobody_is_root() -> None:
    compose = yaml.safe_load((INFRA / "compose.yaml").read_text())
    services = compose["services"]
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "mlflow": ["127.0.0.1:5000:5000"]
    }
    for name, service in services.items():
        assert int(service["user"].partition(":")[0]) > 0, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert {"mem_limit", "cpus", "pids_limit", "healthcheck"} <= service.keys(), name
        assert "privileged" not in service, name
        assert ":" in service["image"], name
        assert not service["image"].endswith(":latest"), name
        assert set(service["secrets"]) <= compose["secrets"].keys(), name
        for variable, value in service.get("environment", {}).items():
            if any(word in variable for word in ("PASSWORD", "SECRET", "KEY")):
                assert value.startswith("/run/secrets/"), (name, variable)
                assert value.removeprefix("/run/secrets/") in service["secrets"], (name, variable)
    assert compose["networks"]["inside"] == {"internal": True}
    for name in ("database", "store"):
        assert services[name]["networks"] == ["inside"]
    made = {"postgres-password", "database-password", "admin-password", "flask-secret-key", "s3-access-key"}
    assert compose["secrets"].keys() == made | {"s3-secret-key", "s3.json"}


def test_what_is_deployed_is_what_is_tested() -> None:
    constraints = (ROOT / "constraints.txt").read_text().split()
    compose = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]
    mlflow = next(line.partition("==")[2] for line in constraints if line.startswith("mlflow=="))
    assert compose["mlflow"]["image"] == f"isoloss-mlflow:{mlflow}"
    assert "--constraint /tmp/constraints.txt" in (INFRA / "Dockerfile").read_text()
    names = {line.partition("==")[0].lower() for line in constraints}
    assert {"psycopg2-binary", "boto3", "flask-wtf"} <= names


def test_kubernetes_gets_what_compose_gets() -> None:
    compose = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]
    pods = {}
    for name in ("mlflow", "database", "object-store"):
        _, controller = yaml.safe_load_all((INFRA / "kubernetes" / f"{name}.yaml").read_text())
        pods[name] = controller["spec"]["template"]["spec"]["containers"][0]
    addresses = ("PGHOST", "PGDATA", "MLFLOW_S3_ENDPOINT_URL", "MLFLOW_SERVER_ALLOWED_HOSTS")
    for service, pod in (("mlflow", "mlflow"), ("database", "database")):
        given = {one["name"]: one["value"].replace("/run/secrets/mlflow/", "/run/secrets/") for one in pods[pod]["env"]}
        wanted = compose[service]["environment"]
        assert {**given, **dict.fromkeys(addresses, "")} == {**wanted, **dict.fromkeys(addresses, "")}
    assert pods["database"]["image"] == compose["database"]["image"]
    assert pods["object-store"]["image"] == compose["store"]["image"]
    config = "-s3.config=/run/secrets/"
    assert [one.replace(f"{config}mlflow/", config) for one in pods["object-store"]["args"]] == compose["store"][
        "command"
    ]
    kustomization = yaml.safe_load((INFRA / "kustomization.yaml").read_text())
    assert f"isoloss-mlflow:{kustomization['images'][0]['newTag']}" == compose["mlflow"]["image"]
    assert {f"kubernetes/{path.name}" for path in (INFRA / "kubernetes").iterdir()} == set(kustomization["resources"])


# --- isoloss and the server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack(tmp_path_factory.mktemp("stack")) as started:
        for user, password in USERS.items():
            status, _ = ask(
                started, "/api/2.0/mlflow/users/create", ("admin", started.secret("admin-password")),
                {"username": user, "password": password},
            )  # fmt: skip
            assert status == 200
        yield started


def ask(
    server: Stack, path: str, login: tuple[str, str] | None = None, body: dict[str, Any] | None = None
) -> tuple[int, bytes]:
    """Send a request, and return status and body of the answer."""
    headers = {"Content-Type": "application/json"}
    if login is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def set_login(user: str, password: str) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # of a server that shares two cores with its tests
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    return set_login


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a study of four trials, all finished."""
    folder = tmp_path_factory.mktemp("state")
    filled(folder / "ledger" / small().name, small(), lost=0, waiting=0)
    return folder


def small(**changes: Any) -> Study:
    return study(axes=SMALL, **changes)


@pytest.fixture
def isoloss(
    state: Path, running: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run a command on the state folder and the server; return its exit code and all that it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        line = ["isoloss", *arguments, "--state", str(state), "--tracking-uri", running.url]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out + captured.err

    return run


def dump(server: Stack, database: str) -> list[str]:
    """Return every row of a database, with the statements around them."""
    environment = {**bare_environment(), **server.database, "PGUSER": "mlflow"}
    environment["PGPASSWORD"] = server.secret("database-password")
    command = [postgres_binaries() / "pg_dump", "--data-only", database]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    # PostgreSQL 15.14 and later fence each dump with a word of its own.
    return sorted(line for line in done.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict")))


@slow
def test_postgresql_has_the_version_that_is_deployed(running: Stack) -> None:
    version = subprocess.run(
        [postgres_binaries() / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    major = version.stdout.split()[2].partition(".")[0]
    image = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]["database"]["image"]
    assert image.startswith(f"postgres:{major}.")


@slow
def test_nothing_of_a_study_is_shown_without_a_password(running: Stack) -> None:
    assert ask(running, "/health") == (200, b"OK")
    for path in (
        "/", "/graphql", "/metrics", "/signup", "/docs", "/get-artifact?path=a&run_uuid=b", "/v1/traces",
        "/ajax-api/2.0/mlflow/experiments/search?max_results=1", "/api/2.0/mlflow-artifacts/artifacts?path=.",
        "/gateway/mlflow/v1/chat",
    ):  # fmt: skip
        status, body = ask(running, path)
        assert status in (401, 404), (path, status, body[:200])
    for user, password in (("admin", "password1234"), ("ada", "wrong-password-here"), ("nobody", "")):
        assert ask(running, "/", (user, password))[0] == 401
    assert ask(running, "/", ("ada", USERS["ada"]))[0] == 200


@slow
def test_an_address_that_the_server_does_not_know_is_named(
    state: Path, running: Stack, login: Callable[[str, str], None]
) -> None:
    login("ada", USERS["ada"])
    other = running.url.replace("127.0.0.1", "localhost")
    with pytest.raises(TrackError, match="does not answer to this address: its MLFLOW_SERVER_ALLOWED_HOSTS must name"):
        publish(small(), Ledger(state / "ledger" / small().name), other)


@slow
@pytest.mark.parametrize("user", ["", "ada"])
def test_a_wrong_or_missing_password_is_one_clear_line(
    user: str, state: Path, running: Stack, login: Callable[[str, str], None], isoloss: Callable[..., tuple[int, str]]
) -> None:
    before = contents(state / "ledger")
    if user:
        login(user, "not-my-password")
    told = (
        "it does not accept the password of user 'ada': check MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        if user else "it asks for a user and a password: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    )  # fmt: skip
    assert isoloss("publish", small().name) == (3, f"isoloss: cannot publish to MLflow at {running.url}: {told}\n")
    code, output = isoloss("doctor")
    assert code == 3
    assert f"failed   mlflow    {running.url}: {told}; trials would still run, unseen" in output.splitlines()
    ledger = Ledger(state / "ledger" / small().name)
    tracker = Tracker(small(), ledger, running.url)
    for claim in ledger.claims():
        tracker.running(claim)
        tracker.finished(claim.key)
    shown = tracker.close(30)
    assert (shown.error, shown.pending, shown.written) == (told, 4, 0)
    after = contents(state / "ledger")
    assert {name: data for name, data in after.items() if name in before} == before
    assert not [name for name in after.keys() - before.keys() if "lock" not in name and "mlflow" not in name]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@slow
def test_a_study_is_published_once_and_read_back(
    state: Path, running: Stack, login: Callable[[str, str], None], isoloss: Callable[..., tuple[int, str]]
) -> None:
    import boto3

    login("ada", USERS["ada"])
    code, output = isoloss("doctor")
    assert "a run with a metric and a file was written, read back and deleted" in output
    code, output = isoloss("publish", small().name, "--json")
    assert code == 0
    facts = json.loads(output)
    files = contents(state / "reports" / small().name)
    assert (facts["trials"], facts["written"], facts["files"]) == (4, 4, len(files))

    runs = runs_by_name(running.url)
    parent = runs.pop(small().name)
    assert {run.info.status for run in (*runs.values(), parent)} == {"FINISHED"}
    assert set(runs) == {"t0000", "t0001", "t0002", "t0003"}
    client = connect(running.url)
    for number, (_, trial) in enumerate(small().trials()):
        run, curve = runs[f"t{number:04d}"], result(trial).curve
        points = client.get_metric_history(run.info.run_id, "eval/loss")
        assert [(point.step, point.value) for point in points] == list(zip(curve.step, curve.loss, strict=True))
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id

    assert {"report.html", "surface.png", "surface.parquet", "trials.parquet"} <= files.keys()
    for name, data in files.items():
        path = f"/get-artifact?path={name}&run_uuid={parent.info.run_id}"
        assert ask(running, path, ("ben", USERS["ben"])) == (200, data)
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    stored = boto3.client("s3", endpoint_url=running.store, **keys).list_objects_v2(Bucket="mlflow")["Contents"]
    sizes = {object["Key"].rpartition("/artifacts/")[2]: object["Size"] for object in stored}
    assert {name: sizes[name] for name in files} == {name: len(data) for name, data in files.items()}
    assert len([object for object in stored if object["Key"].endswith("/curve.csv")]) == 4

    before = dump(running, "mlflow")
    code, output = isoloss("publish", small().name, "--json")
    assert json.loads(output)["written"] == 0
    assert dump(running, "mlflow") == before


@slow
def test_who_may_only_read_is_told(
    state: Path, running: Stack, login: Callable[[str, str], None], isoloss: Callable[..., tuple[int, str]]
) -> None:
    ledger = Ledger(state / "ledger" / small().name)
    login("ada", USERS["ada"])
    publish(small(), ledger, running.url)
    login("ben", USERS["ben"])
    before = dump(running, "mlflow")
    assert len(runs_by_name(running.url)) == 5
    refused = "user 'ben' may read there but not write: an administrator must grant MANAGE on the experiment"
    code, output = isoloss("publish", small().name)  # all numbers are there, and the report is uploaded each time
    assert code == 3
    assert output.endswith(
        f"isoloss: not all files are there: cannot upload {state}/reports/{small().name}: {refused}\n"
    )
    with pytest.raises(TrackError, match=f"cannot publish to MLflow at {running.url}: {refused}"):
        publish(small(question="Another one?"), ledger, running.url)
    assert dump(running, "mlflow") == before
    code, output = isoloss("doctor")  # and his own studies are no matter of hers
    assert "a run with a metric and a file was written, read back and deleted" in output


@slow
def test_a_server_that_goes_away_in_the_middle_is_brought_up_to_date(
    tmp_path: Path, running: Stack, login: Callable[[str, str], None]
) -> None:
    of = small(name="interrupted", replicates=2)
    ledger = filled(tmp_path / "ledger", of, lost=0, waiting=0)
    login("ada", USERS["ada"])
    errors: list[str] = []

    def try_to_publish() -> None:
        try:
            publish(of, ledger, running.url)
        except TrackError as error:
            errors.append(str(error))

    publisher = threading.Thread(target=try_to_publish)
    publisher.start()
    while len(there := rows_of(running, of)) < 3:
        assert publisher.is_alive()
        time.sleep(0.02)
    running.server.kill()
    publisher.join(60)
    assert not publisher.is_alive()
    assert len(errors) == 1
    assert errors[0].startswith(f"cannot publish to MLflow at {running.url}: ")
    assert len(there) < 9

    running.restart()
    done = publish(of, ledger, running.url)
    assert 0 < done.written <= 8
    assert (done.trials, done.error) == (8, "")
    runs = runs_by_name(running.url, of.name)
    runs.pop(of.name)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert [run.data.tags["isoloss.key"].rpartition("/")[2] for _, run in sorted(runs.items())] == [
        trial.key for _, trial in of.trials()
    ]
    client = connect(running.url)
    for number, (_, trial) in enumerate(of.trials()):
        curve = result(trial).curve
        points = client.get_metric_history(runs[f"t{number:04d}"].info.run_id, "eval/loss")
        assert [(point.step, point.value) for point in points] == list(zip(curve.step, curve.loss, strict=True))
    assert publish(of, ledger, running.url).written == 0


def rows_of(server: Stack, of: Study) -> set[str]:
    """Return the ids of the runs that a study has by now, from the database itself."""
    import psycopg2

    with psycopg2.connect(
        host="127.0.0.1", port=server.database["PGPORT"], user="mlflow", dbname="mlflow",
        password=server.secret("database-password"),
    ) as connection, connection.cursor() as cursor:  # fmt: skip
        cursor.execute("SELECT run_uuid FROM runs JOIN experiments USING (experiment_id) WHERE experiments.name = %s",
                       [of.name])  # fmt: skip
        return {run_id for (run_id,) in cursor.fetchall()}


@slow
def test_no_password_is_written_anywhere(running: Stack, state: Path) -> None:
    passwords = [*USERS.values(), *(path.read_text() for path in running.secrets.iterdir() if path.name != "s3.json")]
    written = {name: "\n".join(dump(running, name)) for name in ("mlflow", "mlflow_auth")}
    assert "ada" in written["mlflow_auth"]
    written["log"] = running.server.log.read_text()
    written |= {name: data.decode("latin-1") for name, data in contents(state).items()}
    pid = running.server.process.pid if running.server.process else 0
    written["command line"] = Path(f"/proc/{pid}/cmdline").read_text()
    for place, text in written.items():
        assert not [password for password in passwords if password in text], place


def test_a_password_in_the_tracking_uri_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = closed_address().replace("http://", "http://ada:hunter2hunter2@")
    for command in ("publish", "submit"):
        line = ["isoloss", command, "studies/x.py", "--state", str(tmp_path), "--tracking-uri", address]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        assert end.value.code == 2
        assert captured.err.startswith("isoloss: the tracking URI holds a password")
        assert "hunter2" not in captured.out + captured.err
