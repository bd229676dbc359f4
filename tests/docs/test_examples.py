"""What the documentation tells people to run does what the documentation says."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, Example, Page, commands, read_page

PAGES = [
    page for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if (page := read_page(path)).examples
]


def matches(expected: str, found: str) -> bool:
    """Whether an output is the documented one, ``...`` standing for anything."""
    return doctest.OutputChecker().check_output(expected, found, doctest.ELLIPSIS)


def run_command(command: str, folder: Path) -> str:
    """Run a line as a shell would, with the ``deepinfer`` of this Python, and return its stdout."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_python(source: str, names: dict[str, Any]) -> str:
    """Run a block after those before it on its page, and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<example>", "exec"), names)
    return printed.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_print_what_the_page_says(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deepinfer_core").symlink_to(ROOT / "deepinfer_core")  # examples that say "from a checkout"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    for example in page.examples:
        found = run_command(example.source, tmp_path) if example.kind == "shell" else run_python(example.source, names)

        if example.output is not None:
            where = f"{page.name}:{example.line}: {example.source}"
            assert matches(example.output, found), f"{where}\nthe page says\n{example.output}\nit prints\n{found}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_of_these_pages_is_left_out(page: Page) -> None:
    run = "\n".join(example.source for example in page.examples if example.kind == "shell")

    assert [command for command in commands(page.path) if command not in run] == []


def test_the_two_pages_of_a_newcomer_have_examples() -> None:
    assert {"README.md", "docs/quickstart.md"} <= {page.name for page in PAGES}


def test_an_output_that_differs_is_noticed() -> None:
    assert matches("a ...\nb\n", "a 1 2\nb\n")
    assert not matches("a ...\nb\n", "a 1 2\nc\n")


def test_examples_of_a_page_are_found(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# T\n\n```sh\npip install x && deepinfer a b\n```\n\n```text\n42\n```\n\n```console\n$ ls\nf\n$ pwd\n```\n"
    )

    assert read_page(path).examples == [
        Example(4, "shell", "deepinfer a b", "42\n"),
        Example(12, "shell", "ls", "f\n"),
        Example(14, "shell", "pwd", ""),
    ]
