"""The documentation: links lead somewhere, decisions are complete."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGES, ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(page for p in PACKAGES for page in (ROOT / p).glob("*.md"))]
)
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
SECTIONS = ["Context", "Decision", "Consequences", "What would make us change it"]

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[tuple[str, str]]:
    """Target and fragment of every local link and picture of a page, outside code."""
    return LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8")))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The fragments that viewers give to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    broken = [
        f"{target}#{fragment}"
        for target, fragment in links(page)
        if not (file := page.parent / target if target else page).exists()
        or (fragment and fragment not in anchors(file))
    ]

    assert broken == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading, `with` code\n\n[a](#a-heading-with-code) ![b](b.svg) [c](#none) [d](https://e.f)\n")

    assert links(page) == [("", "a-heading-with-code"), ("b.svg", ""), ("", "none")]
    assert anchors(page) == {"a-heading-with-code"}


def test_every_page_can_be_reached_from_the_readme() -> None:
    found: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        found.add(page)
        targets = {(page.parent / target).resolve() for target, _ in links(page) if target}
        pages = {f for t in targets for f in (t.glob("*.md") if t.is_dir() else [t]) if f.suffix == ".md"}
        todo += pages - found

    assert [
        str(page.relative_to(ROOT)) for page in PAGES if page not in found and (ROOT / "docs") in page.parents
    ] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decision_has_its_four_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert text.startswith(f"# {page.name[:4]} ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
