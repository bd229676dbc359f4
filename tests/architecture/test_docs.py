"""The documentation: links lead somewhere, decisions are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGES, ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(page for p in PACKAGES for page in (ROOT / p).glob("*.md"))]
)
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
SECTIONS = ["Context", "Decision", "Consequences", "What would make us change it"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decision_has_its_four_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert text.startswith(f"# {page.name[:4]} ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
