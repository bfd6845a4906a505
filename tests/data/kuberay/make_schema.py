"""Makes the JSON schemas of this folder from KubeRay's custom resource definitions.

    git clone --branch v1.7.0 --depth 1 https://github.com/ray-project/kuberay
    python make_schema.py kuberay/ray-operator/config/crd/bases

Kept is what a user writes, the ``spec`` of version v1, without descriptions. Kubernetes drops a field that it does not
know; these schemas refuse it. What KubeRay itself checks beyond them (its CEL rules, and its operator) is left out.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml

KINDS = {"raycluster": "ray.io_rayclusters.yaml", "rayjob": "ray.io_rayjobs.yaml"}


def closed(schema: Any) -> Any:
    """Return a schema without descriptions that refuses unknown fields wherever it lists the known ones."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: closed(field) for name, field in value.items()}
        elif key != "description" and not key.startswith("x-kubernetes-"):
            kept[key] = closed(value)
    if "required" in kept:  # Kubernetes fills in defaults before it looks for what is missing
        kept["required"] = [name for name in kept["required"] if "default" not in kept["properties"][name]]
    if "properties" in kept and not schema.get("x-kubernetes-preserve-unknown-fields"):
        kept.setdefault("additionalProperties", False)
    return kept


def spec_schema(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what a user writes of a custom resource: all of version v1 but its status."""
    [version] = [version for version in definition["spec"]["versions"] if version["name"] == "v1"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
    return {**schema, "required": ["apiVersion", "kind", "metadata", "spec"]}


if __name__ == "__main__":
    for kind, name in KINDS.items():
        text = (Path(sys.argv[1]) / name).read_text()
        schema = json.dumps(spec_schema(yaml.load(text, Loader=yaml.CSafeLoader)), separators=(",", ":"))
        # Without a time the same definitions give the same bytes.
        Path(__file__).with_name(f"{kind}.json.gz").write_bytes(gzip.compress(schema.encode(), mtime=0))
