"""Pages of the documentation as what they promise: commands, Python, and what they print."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|&& |\| |\$ )(deepinfer [a-z-].*)$")


@dataclass(slots=True)
class Example:
    """One thing to run.

    Attributes:
        line: Line of the page where it stands.
        kind: ``shell`` or ``python``.
        source: What to run.
        output: What the page says that it prints; None where the page says nothing.
    """

    line: int
    kind: str
    source: str
    output: str | None = None


@dataclass(slots=True)
class Page:
    """A page with its examples, in order."""

    path: Path
    examples: list[Example] = field(default_factory=list[Example])

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))


def read_page(path: Path) -> Page:
    """Collect the examples of a page.

    ``console`` blocks hold commands behind ``$`` and their output; of the lines of ``sh`` blocks, which set a machine
    up, only the calls of ``deepinfer`` are taken. A ``text`` block behind a ``python`` or ``sh`` block is its output.
    """
    text = path.read_text(encoding="utf-8")
    page = Page(path)
    previous_end, previous_language = 0, ""
    for fence in _FENCE.finditer(text):
        language, body = fence.groups()
        line = text.count("\n", 0, fence.start()) + 2
        if language == "console":
            page.examples += _console(line, body)
        elif language == "python":
            page.examples.append(Example(line, "python", body, ""))
        elif language == "sh":
            page.examples += [
                Example(line + number, "shell", command[1])
                for number, text_line in enumerate(body.splitlines())
                if (command := _COMMAND.search(text_line))
            ]
        elif (
            language == "text"
            and previous_language in ("python", "sh")
            and _is_near(text[previous_end : fence.start()])
        ):
            page.examples[-1].output = body
        previous_end, previous_language = fence.end(), language
    return page


def commands(path: Path) -> list[str]:
    """Every call of ``deepinfer`` on a page, wherever it stands on a line of its own."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [found[1] for line in lines if (found := _COMMAND.search(line.strip()))]


def _console(first_line: int, body: str) -> list[Example]:
    examples: list[Example] = []
    for number, line in enumerate(body.splitlines(keepends=True)):
        if line.startswith("$ "):
            examples.append(Example(first_line + number, "shell", line[2:].rstrip("\n"), ""))
        elif examples:
            examples[-1].output = (examples[-1].output or "") + line
    return examples


def _is_near(between: str) -> bool:
    """At most one paragraph stands between a block and its output."""
    return between.strip().count("\n\n") == 0
