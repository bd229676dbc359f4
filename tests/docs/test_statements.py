"""Lists and numbers that pages repeat from the code are still those of the code."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from deepinfer_core import errors
from deepinfer_core.cli.main import COMMANDS
from deepinfer_core.config.checkpoint import read_architecture
from deepinfer_core.config.numerics import VARIANTS
from deepinfer_core.dtypes import FORMATS
from deepinfer_core.model.cache_layout import CacheLayout, cache_layout
from tests.docs.pages import ROOT
from tests.golden_agreement.golden_files import FILES


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def layout() -> CacheLayout:
    """The caches of the released model."""
    config = json.loads((ROOT / "tests/unit/config/released_config.json").read_text(encoding="utf-8"))
    return cache_layout(read_architecture(config)[0])


def test_the_tree_of_errors_is_complete() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.DeepInferError)]
    builtin = {c.__name__: next((b.__name__ for b in c.__bases__ if b.__module__ == "builtins"), "") for c in classes}

    stated = re.findall(
        r"^(?:[│ ]*[├└]── )?(\w+Error|\w+Backend|BackendNotFound)(?: \((\w+)\))?", page("errors.md"), re.M
    )

    assert dict(stated) == {**builtin, "DeepInferError": ""}


def test_tests_that_pages_name_exist() -> None:
    named = {
        match
        for file in sorted((ROOT / "docs").glob("*.md"))
        for match in re.findall(r"(tests/\S+\.py)::(\w+)", file.read_text())
    }

    assert len(named) > 20
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []


def test_every_variant_of_the_arithmetic_is_explained() -> None:
    stated = re.findall(r"^\| `(\w+)` \|", page("numerics.md"), re.M)

    assert set(stated) == set(VARIANTS)


def test_bytes_of_the_caches_are_those_of_the_layout(layout: CacheLayout) -> None:
    rows = dict(re.findall(r"\(`(\w+)`\) .* \| (\d+) for each \w+ \|$", page("caches.md"), re.M))

    found = {s.kind: s.size_bytes // s.rows for s in (*layout.block_sections, *layout.slot_sections)}
    assert {kind: int(size) for kind, size in rows.items()} == found
    assert f"**{layout.bytes_per_token:g} bytes**" in page("caches.md")


def test_formats_of_the_caches_are_those_of_the_code() -> None:
    stated = re.findall(r"^\| `(\w+)` \| .* \| (\d+) channels \|", page("caches.md"), re.M)

    assert {name: int(group) for name, group in stated} == {f.name: f.group for f in FORMATS.values() if f.rows == 1}


def test_golden_files_are_as_many_as_stated() -> None:
    text = page("numerics.md")

    assert f"{len(FILES)} text prompts" in text
    assert max(len(file.nudges) for file in FILES) == 3
    assert "at most three in one file" in text
    assert sum(not file.nudges for file in FILES) > len(FILES) / 2


def test_folders_of_core_are_on_the_map() -> None:
    stated = set(re.findall(r"^\| `([a-z_]+)/` \|", page("architecture.md"), re.M))

    folders = {path.name for path in (ROOT / "deepinfer_core").iterdir() if (path / "__init__.py").exists()}
    assert folders <= stated


def test_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    named = set(re.findall(r"deepinfer ([a-z]+)\b", text))
    assert named - {"core"} <= set(COMMANDS)
    assert {"generate", "check", "trace", "diff", "backends", "conformance"} <= named
