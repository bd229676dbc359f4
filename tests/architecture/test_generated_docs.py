"""Pages and pictures that are made from the code are those that the code makes."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.source_tree import ROOT


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    """The script ``docs/generate.py``, which finds its modules beside itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("generate")


@pytest.fixture(scope="module")
def pages(generate: ModuleType) -> dict[str, str]:
    return generate.pages()


def test_generated_files_are_up_to_date(generate: ModuleType, pages: dict[str, str]) -> None:
    stale = generate.stale(ROOT / "docs", pages)

    assert stale == [], "run python docs/generate.py"


def test_changed_missing_and_left_over_files_are_noticed_and_mended(
    generate: ModuleType, pages: dict[str, str], tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs)
    generate.write(docs, pages)
    (docs / "ops/norm.md").write_text("# Ops: norm\n", encoding="utf-8")
    (docs / "configuration.md").unlink()
    (docs / "ops/of_old.md").write_text("# Ops: of old\n", encoding="utf-8")

    found = generate.stale(docs, pages)
    generate.write(docs, pages)

    assert found == ["configuration.md", "ops/norm.md", "ops/of_old.md"]
    assert generate.stale(docs, pages) == []


def test_pages_name_nothing_of_the_machine(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        assert str(ROOT) not in text, name


def test_pages_are_the_same_when_made_again(generate: ModuleType, pages: dict[str, str]) -> None:
    assert generate.pages() == pages
