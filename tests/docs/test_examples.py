"""What the documentation tells people to run does what the documentation says."""

from __future__ import annotations

import contextlib
import doctest
import io
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.main import main
from tests.docs.pages import ROOT, Example, Page, commands, read_page

PAGES = [
    page for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if (page := read_page(path)).examples
]


SHELL = re.compile(r"[|&;<>$`]")
"""What only a shell understands."""


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command sets the project's logger up for its process, which here is that of the tests."""
    logger = logging.getLogger("deepinfer")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers = before[1:]


def matches(expected: str, found: str) -> bool:
    """Whether an output is the documented one, ``...`` standing for anything."""
    return doctest.OutputChecker().check_output(expected, found, doctest.ELLIPSIS)


def run_command(command: str, folder: Path) -> str:
    """Run a line as a shell would, with the ``deepinfer`` of this Python, and return its stdout.

    A plain call of ``deepinfer`` runs in this process, so that torch is imported once.
    """
    if command.startswith("deepinfer ") and not SHELL.search(command):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = main(shlex.split(command)[1:])
        assert code == 0, f"{command} ended with {code}\n{printed.getvalue()}"
        return printed.getvalue()
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
    for name in ("deepinfer_core", "tests"):  # for examples that say "from a checkout"
        (tmp_path / name).symlink_to(ROOT / name)
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
