"""Who may import whom, and what an import may cost."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGES, ROOT, modules

LIGHT = (
    "deepinfer_core",
    "deepinfer_core.backend.registry",
    "deepinfer_core.cli.main",
    "deepinfer_core.config.architecture",
    "deepinfer_core.config.env",
    "deepinfer_core.dtypes",
    "deepinfer_core.errors",
    "deepinfer_core.null.info",
    "deepinfer_core.reference.info",
    "deepinfer_core.tensor",
    "deepinfer_ascend.info",
    "deepinfer_cuda.info",
)
"""Modules that load before a backend is chosen, or without one."""

PLANTED = {
    "layers": ("deepinfer_core/errors.py", "import deepinfer_core.engine"),
    "core-knows-no-backend": ("deepinfer_core/backend/registry.py", "import deepinfer_cuda.backend"),
    "no-tensors": ("deepinfer_core/config/env.py", "import torch"),
    "graph-has-no-device": ("deepinfer_core/model/parameters.py", "import torch"),
    "backends-use-the-contract": ("deepinfer_cuda/backend.py", "import deepinfer_core.model.parameters"),
    "kit-is-for-tests": ("deepinfer_cuda/info.py", "import deepinfer_core.conformance"),
    "backends-are-strangers": ("deepinfer_ascend/backend.py", "import deepinfer_cuda.info"),
    "op-families": ("deepinfer_core/ops/quantize/rounding.py", "import deepinfer_core.ops.linear.linear"),
}
"""Contract -> (file, line) that breaks it."""


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of the packages below a folder."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_import_contracts_hold() -> None:
    done = lint(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_contract_breaks_when_it_is_broken_on_purpose(tmp_path: Path) -> None:
    for path in modules(*PACKAGES):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, line in PLANTED.values():
        with (tmp_path / path).open("a") as file:
            file.write(f"\n{line}\n")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

    done = lint(tmp_path)

    kept = [contract["name"] for contract in contracts if f"{contract['name']} BROKEN" not in done.stdout]
    assert kept == [], done.stdout
    assert {contract["id"] for contract in contracts} == set(PLANTED)


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_imports_no_tensor_library(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in ('torch', 'numpy') if name in sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_op_of_another_family_is_used_only_as_a_declared_part() -> None:
    from deepinfer_core.ops import catalogue
    from deepinfer_core.ops.declare import Op

    defined: dict[str, list[Op]] = defaultdict(list)
    for op in catalogue():
        defined[op.reference.__module__].append(op)

    undeclared: dict[str, set[str]] = {}
    for module, ops in defined.items():
        imported = {value for value in vars(importlib.import_module(module)).values() if isinstance(value, Op)}
        foreign = {op.name for op in imported if op.family != ops[0].family}
        undeclared[module] = foreign - {part.op.name for op in ops for part in op.parts}

    assert {module: names for module, names in undeclared.items() if names} == {}


@pytest.mark.parametrize("package", ["config", "parallel", "scheduler"])
def test_package_of_integers_is_under_the_contract_as_soon_as_it_exists(package: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    bound = next(contract["source_modules"] for contract in contracts if contract["id"] == "no-tensors")

    assert (f"deepinfer_core.{package}" in bound) == (ROOT / "deepinfer_core" / package).is_dir()
