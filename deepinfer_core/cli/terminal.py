"""What is at the other end of stdin and stdout, and how to talk to it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import TextIO

_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


def wants_color(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a stream is a terminal that shows styles, and its user has not switched them off.

    ``NO_COLOR`` (no-color.org) and ``TERM`` describe the user's terminal, not a run of ours, so they are no settings.
    """
    found = os.environ if environ is None else environ  # noqa: TID251  # see above
    return stream.isatty() and not found.get("NO_COLOR") and found.get("TERM") != "dumb"


def dim(text: str) -> str:
    """Text that a terminal shows fainter."""
    return f"{_DIM}{text}{_PLAIN}" if text else ""


def is_interactive() -> bool:
    """Whether a person types the input."""
    return sys.stdin.isatty()


def enable_line_editing() -> None:
    """Let :func:`read_line` edit lines and recall earlier ones, where Python was built with readline."""
    try:
        importlib.import_module("readline")  # importing it is what changes input()
    except ImportError:
        return


def read_line(prompt: str) -> str | None:
    """The next line without surrounding space, or None at the end of the input.

    Args:
        prompt: Shown to a person; never written into a redirected stdout.
    """
    if is_interactive() and sys.stdout.isatty():
        try:
            return input(prompt).strip()
        except EOFError:
            sys.stdout.write("\n")
            return None
    if is_interactive():
        sys.stderr.write(prompt)
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None
