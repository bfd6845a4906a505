"""What infra/ starts on hosts: images, clusters of ``ray up``, and the batch script for Slurm."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|_KEY\b", re.IGNORECASE)
Resource = dict[str, Any]


@pytest.fixture(scope="module")
def ray_up() -> dict[str, Resource]:
    return {name: yaml.safe_load((INFRA / f"ray/{name}.yaml").read_text()) for name in ("aws", "local")}


def check_ray_up(config: Resource) -> Resource:
    """Return a configuration of ``ray up`` as Ray completes it; raises what its own validator raises."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    whole = prepare_config(config)
    validate_config(whole)
    return whole


@pytest.mark.parametrize("name", ["aws", "local"])
def test_ray_up_accepts_its_files_and_refuses_wrong_fields(name: str, ray_up: dict[str, Resource]) -> None:
    from ray.autoscaler.sdk import get_docker_host_mount_location

    whole = check_ray_up(ray_up[name])
    commands = [command for key, value in whole.items() if key.endswith("_commands") for command in value]
    [head] = [command for command in commands if "ray start --head" in command]
    assert "--dashboard-host=127.0.0.1 " in head
    assert not [command for command in commands if "0.0.0.0" in command or "anaconda" in command]
    options = whole["docker"]["run_options"]
    assert {"--env RAY_AUTH_MODE=token", "--cap-drop ALL", "--security-opt no-new-privileges"} <= set(options)
    assert whole["file_mounts"]["/home/ray/.ray/auth_token"], "every node has the token"
    [secrets] = [option.removeprefix("--env-file ") for option in options if option.startswith("--env-file")]
    assert secrets.removeprefix(get_docker_host_mount_location(whole["cluster_name"])) in whole["file_mounts"]
    with pytest.raises(jsonschema.ValidationError, match="'idle_timeout_minute' was unexpected"):
        check_ray_up({**ray_up[name], "idle_timeout_minute": 5})
    with pytest.raises(jsonschema.ValidationError, match="'imagee' was unexpected"):
        check_ray_up({**ray_up[name], "docker": {**ray_up[name]["docker"], "imagee": "x"}})


def test_aws_grows_from_no_gpu_node_to_all_and_the_head_has_none(ray_up: dict[str, Resource]) -> None:
    types = check_ray_up(ray_up["aws"])["available_node_types"]
    assert (types["head"]["max_workers"], types["head"]["resources"]["GPU"]) == (0, 0)
    assert (types["gpu-spot"]["min_workers"], types["gpu-spot"]["max_workers"]) == (0, ray_up["aws"]["max_workers"])
    assert types["gpu-spot"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in types["head"]["node_config"]
    for node in types.values():
        assert node["node_config"]["SecurityGroupIds"], "or Ray makes one that lets ssh in from everywhere"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return (instruction, rest) of a Dockerfile, continued lines joined, comments left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


DOCKERFILES = sorted(INFRA.rglob("Dockerfile"))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=[str(file.relative_to(ROOT)) for file in DOCKERFILES])
def test_images_copy_what_there_is_and_run_as_a_user_with_a_number(dockerfile: Path) -> None:
    steps = instructions(dockerfile)
    allowed = dockerfile.with_name("Dockerfile.dockerignore").read_text().splitlines()
    for word, rest in steps:
        assert word != "ADD"
        if word == "COPY":
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            for source in sources:
                assert (ROOT / source).exists(), f"{source} is not in the repository"
                assert f"!{source}" in allowed, f"{source} is kept out by {dockerfile.name}.dockerignore"
        if word in {"ENV", "ARG"}:
            assert not [name for name in re.findall(r"(\S+?)=", rest) if SECRET.search(name)]
    [base] = [rest for word, rest in steps if word == "FROM"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base), "a base that does not move"
    user = [rest for word, rest in steps if word == "USER"][-1]
    assert int(user.split(":")[0]) >= 1000


def test_the_image_installs_by_the_constraints_torch_first_and_the_package_last() -> None:
    steps = [rest for word, rest in instructions(INFRA / "image/Dockerfile") if word == "RUN" and "pip install" in rest]
    torch, dependencies, package = steps
    assert torch.endswith(" torch")
    assert "--constraint constraints.txt" in torch
    assert "--constraint constraints.txt --requirement requirements.txt" in dependencies
    assert "--no-deps ." in package
    command = re.search(r'python -c "(.*)"', dependencies)[1].replace("\\n", "\n")
    listed = subprocess.run(
        [sys.executable, "-c", command.replace("\n", "\\n")], cwd=ROOT, capture_output=True, text=True
    )
    assert {"ray[default,train,tune]>=2.60,<3", "torch>=2.9,<3"} <= set(listed.stdout.split()), listed.stderr


def test_jobs_are_stopped_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.exceptions", SimpleNamespace(RayError=RuntimeError))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray.job_submission", SimpleNamespace(JobSubmissionClient=None))  # type: ignore[arg-type]
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    stop_jobs = runpy.run_path(str(INFRA / "image/stop-jobs"))["stop_jobs"]
    asked, looks = [], {"running": iter([False, False, True]), "endless": iter(lambda: False, True)}

    def status(ended: bool) -> SimpleNamespace:
        return SimpleNamespace(is_terminal=lambda: ended)

    client = SimpleNamespace(
        list_jobs=lambda: [
            SimpleNamespace(submission_id="running", status=status(False)),
            SimpleNamespace(submission_id="ended", status=status(True)),
            SimpleNamespace(submission_id=None, status=status(False)),  # a driver that is no job
        ],
        stop_job=asked.append,
        get_job_status=lambda job: status(next(looks[job])),
    )
    assert stop_jobs(client, seconds=10.0) == []
    assert asked == ["running"]
    looks["running"] = looks["endless"]
    assert stop_jobs(client, seconds=0.01) == ["running"]


def test_the_batch_script_is_sound() -> None:
    script = INFRA / "slurm/isoloss.sbatch"
    for checker in (["bash", "-n"], [str(Path(sys.executable).with_name("shellcheck"))]):
        done = subprocess.run([*checker, script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    text = script.read_text()
    assert "#SBATCH --signal=B:INT@120" in text
    assert not re.search(r"^[^#]*ray stop", text, re.MULTILINE), "which ends every Ray of the host"
