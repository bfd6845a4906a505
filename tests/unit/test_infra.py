"""What infra/ gives to Kubernetes is valid by its definitions and KubeRay's, and asks for no needless rights."""

from __future__ import annotations

import gzip
import json
import re
import runpy
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
INFRA, SCHEMAS = ROOT / "infra", ROOT / "tests/data/kuberay"
KUBERNETES = "1.37"
RAY_KINDS = {"RayCluster": "raycluster", "RayJob": "rayjob"}
Resource = dict[str, Any]


def resources(pattern: str = "**/*.yaml") -> list[tuple[str, Resource]]:
    """Return (file, resource) of what infra/ gives to Kubernetes; kustomize's own files stay here."""
    found = []
    for file in sorted(INFRA.glob(pattern)):
        for one in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
            if isinstance(one, dict) and "kind" in one and "kustomize" not in one.get("apiVersion", ""):
                found.append((str(file.relative_to(INFRA)), one))
    return found


RESOURCES = resources()


def named(kind: str) -> list[Resource]:
    return [deepcopy(one) for _, one in RESOURCES if one["kind"] == kind]


@cache
def schema(kind: str) -> jsonschema.Draft202012Validator:
    packed = (SCHEMAS / f"{RAY_KINDS[kind]}.json.gz").read_bytes()
    return jsonschema.Draft202012Validator(json.loads(gzip.decompress(packed)))


def refusals(one: Resource) -> list[str]:
    """Return why a resource is refused: by KubeRay's definition, or by Kubernetes' where it is its own."""
    if one["kind"] in RAY_KINDS:
        errors = schema(one["kind"]).iter_errors(one)
        return [f"{error.json_path}: {error.message}" for error in errors]
    try:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return []


def pods(one: Any) -> Iterator[Resource]:
    """Yield every pod's spec within a resource, wherever it is."""
    if isinstance(one, dict):
        if "containers" in one:
            yield one
        for value in one.values():
            yield from pods(value)
    elif isinstance(one, list):
        for value in one:
            yield from pods(value)


def containers() -> list[tuple[str, Resource, Resource]]:
    """Return (name, its pod's spec, container) of all containers, initial ones and Ray's autoscaler included."""
    found = []
    for file, one in RESOURCES:
        for pod in pods(one):
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                found.append((f"{file}: {one['kind']} {container['name']}", pod, container))
        spec = one.get("spec", {})
        cluster = spec.get("rayClusterSpec", spec)
        if "autoscalerOptions" in cluster:  # of which KubeRay makes a container beside the head's
            head = cluster["headGroupSpec"]["template"]["spec"]
            found.append((f"{file}: {one['kind']} autoscaler", head, cluster["autoscalerOptions"]))
    return found


def ids(found: list[tuple[Any, ...]]) -> list[str]:
    return [f"{one[0]}-{one[1]['kind']}-{one[1]['metadata']['name']}" for one in found]


@pytest.mark.parametrize(("file", "one"), RESOURCES, ids=ids(RESOURCES))
def test_resources_are_valid(file: str, one: Resource) -> None:
    assert refusals(one) == []


def test_both_kinds_of_cluster_are_there() -> None:
    assert {"RayCluster", "RayJob", "NetworkPolicy", "ServiceAccount", "Namespace"} <= {
        one["kind"] for _, one in RESOURCES
    }


def test_a_wrong_field_anywhere_in_a_cluster_is_refused() -> None:
    [cluster] = named("RayCluster")
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    head["securityContext"]["allowPrivilegedEscalation"] = False
    cluster["spec"]["workerGroupSpecs"][0]["maxReplica"] = 8
    cluster["spec"]["authOptions"]["mode"] = "tokens"
    text = "\n".join(refusals(cluster))
    assert "'allowPrivilegedEscalation' was unexpected" in text
    assert "'maxReplica' was unexpected" in text
    assert "'tokens' is not one of ['disabled', 'token']" in text


def test_a_wrong_field_of_a_job_is_refused() -> None:
    [job] = named("RayJob")
    job["spec"]["shutdownAfterJobFinish"] = True
    job["spec"]["rayClusterSpec"]["autoscalerOptions"]["resources"]["limits"]["cpu"] = [1]
    text = "\n".join(refusals(job))
    assert "'shutdownAfterJobFinish' was unexpected" in text
    assert "limits.cpu: [1] is not" in text, "a quantity is a number or a string"


def test_a_wrong_field_of_kubernetes_own_resources_is_refused() -> None:
    policy = named("NetworkPolicy")[0]
    policy["spec"]["policyType"] = ["Ingress"]
    assert "policyType" in "".join(refusals(policy))


def test_kuberays_own_samples_of_this_version_are_accepted_and_their_status_is_not() -> None:
    # ray-operator/config/samples/ray-cluster.auth.yaml of v1.7.0, shortened.
    group = {"template": {"spec": {"containers": [{"name": "ray", "image": "rayproject/ray:2.53.0",
             "resources": {"limits": {"cpu": "4", "memory": "8Gi"}}}]}}, "rayStartParams": {}}  # fmt: skip
    sample = {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "ray-cluster-with-auth"},
        "spec": {"enableInTreeAutoscaling": True, "authOptions": {"mode": "token"}, "rayVersion": "2.53.0",
                 "headGroupSpec": group, "workerGroupSpecs": [{"groupName": "w", "maxReplicas": 5, **group}]},
    }  # fmt: skip
    assert refusals(sample) == []
    assert refusals({**sample, "status": {}}) == ["$: Additional properties are not allowed ('status' was unexpected)"]


def test_schemas_refuse_what_a_definition_does_not_list_and_forget_its_descriptions() -> None:
    make = runpy.run_path(str(SCHEMAS / "make_schema.py"))
    fields = {"description": {"type": "string", "description": "a field of this name"}, "open": {"type": "object"}}
    assert make["closed"]({"type": "object", "properties": fields, "description": "words"}) == {
        "type": "object", "additionalProperties": False,
        "properties": {"description": {"type": "string"}, "open": {"type": "object"}},
    }  # fmt: skip
    assert "additionalProperties" not in make["closed"](
        {"properties": {}, "x-kubernetes-preserve-unknown-fields": True}
    )


@pytest.mark.parametrize(("name", "pod", "container"), containers(), ids=[name for name, *_ in containers()])
def test_containers_ask_for_no_needless_rights_and_have_limits(name: str, pod: Resource, container: Resource) -> None:
    whole, own = pod.get("securityContext", {}), container.get("securityContext", {})
    both = {**whole, **own}
    assert both.get("runAsNonRoot") is True
    assert both.get("runAsUser", 1) != 0
    assert both.get("seccompProfile") == {"type": "RuntimeDefault"}
    assert own.get("allowPrivilegeEscalation") is False
    assert own.get("capabilities") == {"drop": ["ALL"]}
    assert not own.get("privileged")
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume]
    assert pod.get("automountServiceAccountToken") is False
    for amounts in ("requests", "limits"):
        assert {"cpu", "memory"} <= container["resources"][amounts].keys(), f"{amounts} of cpu and memory"


SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|_KEY\b", re.IGNORECASE)


def test_no_secret_is_written_down() -> None:
    for file, one in RESOURCES:
        assert one["kind"] != "Secret" or not {"data", "stringData"} & one.keys(), file
    for name, _, container in containers():
        for variable in container.get("env", []):
            written = SECRET.search(variable["name"]) and not variable["name"].endswith("_FILE")
            assert not (written and "value" in variable), f"{name}: {variable['name']}"
    for file in INFRA.rglob("*.env"):
        for line in file.read_text().splitlines():
            assert not SECRET.search(line.partition("=")[0]), f"{file}: {line}"


def test_nothing_is_open_to_the_world() -> None:
    for file, one in RESOURCES:
        spec = one.get("spec", {})
        assert spec.get("type") not in {"NodePort", "LoadBalancer"}, file
        assert one["kind"] != "Ingress", file
        cluster = spec.get("rayClusterSpec", spec)
        assert cluster.get("headGroupSpec", {}).get("serviceType", "ClusterIP") == "ClusterIP"
        assert not cluster.get("headGroupSpec", {}).get("enableIngress")
        for pod in pods(one):
            for container in pod["containers"]:
                assert not [port for port in container.get("ports", []) if "hostPort" in port], file


def matches(selector: Resource, labels: dict[str, str]) -> bool:
    """Return whether a label selector chooses an object with these labels."""
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", "the only one that is understood here"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def may(way: str, pod: dict[str, str], port: int, peer: dict[str, str], namespace: str = "isoloss") -> bool:
    """Return whether the policies let a pod take (``ingress``) or make (``egress``) connections with a peer's pod.

    Both are given by their labels; ``port`` is of the one that is connected to, ``namespace`` the peer's.
    """
    about = [policy["spec"] for policy in named("NetworkPolicy") if matches(policy["spec"]["podSelector"], pod)]
    about = [spec for spec in about if way.capitalize() in spec["policyTypes"]]
    assert about, "no policy is about the pod: everything is allowed"
    home = {"matchLabels": {"kubernetes.io/metadata.name": "isoloss"}}
    for rule in (rule for spec in about for rule in spec.get(way, [])):
        if "ports" in rule and port not in [entry["port"] for entry in rule["ports"]]:
            continue
        peers = rule.get("from" if way == "ingress" else "to", [{"namespaceSelector": {}}])
        for one in (one for one in peers if "ipBlock" not in one):
            space = one.get("namespaceSelector", home)
            there = matches(space, {"kubernetes.io/metadata.name": namespace})
            if there and matches(one.get("podSelector", {}), peer):
                return True
    return False


HEAD = {"app": "isoloss-ray", "ray.io/node-type": "head"}
WORKER = {"app": "isoloss-ray", "ray.io/node-type": "worker"}
CLIENT, OPERATOR = {"isoloss-client": "true"}, {"app.kubernetes.io/name": "kuberay-operator"}


@pytest.mark.parametrize(
    ("port", "by", "namespace", "allowed"),
    [
        (8265, CLIENT, "isoloss", True),
        (8265, CLIENT, "elsewhere", False),
        (8265, OPERATOR, "kuberay-system", True),
        (8265, OPERATOR, "elsewhere", False),
        (8265, {"app": "mlflow"}, "isoloss", False),
        (8265, {}, "elsewhere", False),
        (6379, WORKER, "isoloss", True),
        (6379, WORKER, "elsewhere", False),
        (6379, CLIENT, "isoloss", False),
        (6379, OPERATOR, "kuberay-system", False),
        (8080, {}, "monitoring", True),
        (8265, {}, "monitoring", False),
    ],
)
def test_who_reaches_the_head(port: int, by: dict[str, str], namespace: str, allowed: bool) -> None:
    assert may("ingress", HEAD, port, by, namespace) is allowed


@pytest.mark.parametrize(
    ("pod", "port", "to", "namespace", "allowed"),
    [
        (WORKER, 53, {"k8s-app": "kube-dns"}, "kube-system", True),
        (WORKER, 8333, {"app": "object-store"}, "isoloss", True),
        (WORKER, 6379, HEAD, "isoloss", True),
        (WORKER, 443, {}, "elsewhere", False),
        (WORKER, 5000, {"app": "mlflow"}, "isoloss", False),
        (WORKER, 5432, {"app": "mlflow-database"}, "isoloss", False),
        (HEAD, 5000, {"app": "mlflow"}, "isoloss", True),
        (HEAD, 5432, {"app": "mlflow-database"}, "isoloss", False),
        (CLIENT, 8265, HEAD, "isoloss", True),
        (CLIENT, 6379, HEAD, "isoloss", False),
    ],
)
def test_whom_pods_reach(pod: dict[str, str], port: int, to: dict[str, str], namespace: str, allowed: bool) -> None:
    assert may("egress", pod, port, to, namespace) is allowed


def test_mlflow_and_the_object_store_take_what_ray_may_send() -> None:
    assert may("ingress", {"app": "mlflow"}, 5000, HEAD)
    assert may("ingress", {"app": "object-store"}, 8333, WORKER)


def test_the_patch_for_spot_nodes_fits_both_kinds() -> None:
    component = yaml.safe_load((INFRA / "kuberay/spot/kustomization.yaml").read_text())
    assert {patch["target"]["kind"] for patch in component["patches"]} == set(RAY_KINDS)
    for patch in component["patches"]:
        [one] = named(patch["target"]["kind"])
        for change in yaml.safe_load(patch["patch"]):
            *way, last = change["path"].strip("/").split("/")
            place = one
            for step in way:
                place = place[int(step) if isinstance(place, list) else step]
            if last == "-":
                place.append(change["value"])
            else:
                place[last] = change["value"]
        assert refusals(one) == []
        worker = one["spec"].get("rayClusterSpec", one["spec"])["workerGroupSpecs"][0]["template"]["spec"]
        [spot] = worker["nodeSelector"].items()
        assert spot in [(toleration["key"], toleration.get("value")) for toleration in worker["tolerations"]]
        assert [container["name"] for container in worker["containers"]] == ["ray-worker"]


def test_a_job_gets_the_same_cluster_as_one_that_stays() -> None:
    [cluster], [job] = named("RayCluster"), named("RayJob")
    assert job["spec"]["rayClusterSpec"] == cluster["spec"]


def test_a_stopped_job_has_time_to_save_its_trials() -> None:
    [job] = named("RayJob")
    asked = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert asked["RAY_JOB_STOP_SIGNAL"] == "SIGINT"
    patience = float(
        re.search(r'"--seconds", type=float, default=([\d.]+)', (INFRA / "image/stop-jobs").read_text())[1]
    )
    head, worker = (
        job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"],
        job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"],
    )
    assert float(asked["RAY_JOB_STOP_WAIT_TIME_S"]) < float(patience) < head["terminationGracePeriodSeconds"]
    stays = worker["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert float(patience) <= stays < worker["terminationGracePeriodSeconds"]


def constraint(package: str) -> str:
    [version] = re.findall(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return version


def test_manifests_name_the_ray_of_the_image() -> None:
    for one in named("RayCluster"):
        assert one["spec"]["rayVersion"] == constraint("ray")
    assert named("RayJob")[0]["spec"]["rayClusterSpec"]["rayVersion"] == constraint("ray")
