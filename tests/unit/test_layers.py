"""The package's layers: who may import what, and how large things may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "platform" / "isoloss"
MODULES = sorted(PACKAGE.rglob("*.py"))
OWNERS = {
    **{"ray": {"run"}, "optuna": {"search"}, "mlflow": {"track"}},
    **{"tokenizers": {"data"}, "datasets": {"data"}, "transformers": {"probe"}},
}
ABOVE = {
    "config": {"data", "tasks", "model", "probe", "train", "search", "run", "track", "analysis", "report"},
    "data": {"tasks", "model", "probe", "train", "search", "run", "track", "analysis", "report"},
    "tasks": {"model", "probe", "train", "search", "run", "track", "analysis", "report"},
    "model": {"probe", "train", "search", "run", "track", "analysis", "report"},
    "probe": {"train", "search", "run", "track", "analysis", "report"},
    "train": {"search", "run", "track", "analysis", "report"},
    "search": {"run", "track", "analysis", "report"},
    "run": {"track", "analysis", "report"},
    "track": {"analysis", "report"},
    "analysis": {"report"},
}


def imports(module: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_layers(module: Path) -> None:
    layer = module.relative_to(PACKAGE).parts[0]
    for name in imports(module):
        top = name.split(".")[0]
        assert layer in OWNERS.get(top, {layer}), f"only {OWNERS[top]} may import {top}"
        if top == "isoloss" and "." in name:
            assert name.split(".")[1] not in ABOVE.get(layer, set()), f"{layer} may not import {name}"


def test_modules_and_studies_stay_small() -> None:
    assert not [path for path in MODULES if len(path.read_text().splitlines()) > 400]
    assert not [path for path in (ROOT / "studies").glob("*.py") if len(path.read_text().splitlines()) > 80]


def test_platform_is_a_folder_and_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_declaring_a_study_loads_neither_torch_nor_ray_nor_mlflow() -> None:
    code = "import sys, isoloss; isoloss.Study; print([m for m in ('torch', 'ray', 'mlflow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_study_of_the_repository_is_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from isoloss import Prepared, Size
    from isoloss.study_file import load_study

    sizes = (512, 1024, 2048, 4096, 8192, 16_384, 65_536, 131_072)
    for name in ("docstrings", "fineweb-edu-10bt"):
        card = Prepared(
            name=name,
            digest="0123456789abcdef",
            bytes=10**7,
            held_out_documents=1000,
            sizes=tuple(Size(vocab_size=size, tokens=10**7, held_out_tokens=10**5) for size in sizes),
        )
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(card.model_dump_json())
    monkeypatch.setenv("ISOLOSS_DATA", str(tmp_path))
    names = []
    for path in sorted((ROOT / "studies").glob("*.py")):
        tree = ast.parse(path.read_text())
        variants = [f":{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)] or [""]
        names += [load_study(f"{path}{variant}").name for variant in variants]
    assert len(set(names)) == len(names) == 12
