"""The three distributions: what they say they hold is what is there."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path
from typing import Any

import pytest

import deepinfer_core
from tests.architecture.source_tree import PACKAGES, ROOT


def project(package: str) -> dict[str, Any]:
    """The ``pyproject.toml`` of the distribution that holds a package."""
    folder = ROOT if package == "deepinfer_core" else ROOT / package
    return tomllib.loads((folder / "pyproject.toml").read_text())


def tracked(package: str) -> list[Path]:
    """Files of a package that are no by-product of building or running it."""
    products = {"__pycache__", "build", "dist"}
    files = (path.relative_to(ROOT) for path in (ROOT / package).rglob("*") if path.is_file())
    return [
        path
        for path in files
        if not products & set(path.parts) and not any(p.endswith(".egg-info") for p in path.parts)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_listed_packages_are_the_folders_with_code(package: str) -> None:
    folders = {".".join(path.parent.parts) for path in tracked(package) if path.suffix == ".py"}

    assert sorted(project(package)["tool"]["setuptools"]["packages"]) == sorted(folders)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_code_is_a_package(package: str) -> None:
    folders = {path.parent for path in tracked(package) if path.suffix == ".py"}

    assert [folder for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_data_file_is_shipped(package: str) -> None:
    globs = project(package)["tool"]["setuptools"]["package-data"][package]
    not_shipped = {"pyproject.toml", "README.md", "LICENSE"}
    data = [
        path.relative_to(package) for path in tracked(package) if path.suffix != ".py" and path.name not in not_shipped
    ]

    assert [str(path) for path in data if not any(path.match(pattern) for pattern in globs)] == []
    assert Path("py.typed") in data


def test_the_tiny_model_ships_with_core() -> None:
    assert Path("deepinfer_core/models/tiny/config.json") in tracked("deepinfer_core")
    assert Path("deepinfer_core/models/tiny/tokenizer.json") in tracked("deepinfer_core")


@pytest.mark.parametrize("package", PACKAGES)
def test_versions_agree_everywhere(package: str) -> None:
    details = project(package)["project"]

    assert details["version"] == deepinfer_core.__version__
    assert importlib.metadata.version(details["name"]) == deepinfer_core.__version__
    if package != "deepinfer_core":
        assert f"deepinfer-core=={deepinfer_core.__version__}" in details["dependencies"]


@pytest.mark.parametrize("extra", ["cuda", "ascend"])
def test_extras_name_the_sibling_of_the_same_version(extra: str) -> None:
    extras = project("deepinfer_core")["project"]["optional-dependencies"]

    assert extras[extra] == [f"deepinfer-{extra}=={deepinfer_core.__version__}"]


@pytest.mark.parametrize("package", PACKAGES)
def test_building_needs_no_torch(package: str) -> None:
    assert project(package)["build-system"]["requires"] == ["setuptools>=77"]


def test_entry_points_are_installed_as_declared() -> None:
    declared = {
        (name, value)
        for package in PACKAGES
        for name, value in project(package)["project"]["entry-points"]["deepinfer.backends"].items()
    }
    installed = {(p.name, p.value) for p in importlib.metadata.entry_points(group="deepinfer.backends")}

    assert declared <= installed
    assert {name for name, _ in declared} == {"ascend", "cpu", "cuda", "null"}
