"""Values and options that several commands read in the same way."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: It is none; argparse says so with the name of the option.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def whole_number(text: str) -> int:
    """A whole number from 0 on.

    Raises:
        argparse.ArgumentTypeError: As :func:`positive`.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def draft_tokens(text: str) -> int | str:
    """A whole number from 0 on, or ``auto``.

    Raises:
        argparse.ArgumentTypeError: As :func:`positive`.
    """
    if text == "auto":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on, or auto")
    return int(text)


def rate(text: str) -> float:
    """A number above 0, or ``inf``.

    Raises:
        argparse.ArgumentTypeError: As :func:`positive`.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, or inf")
    return value


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, with commas between them.

    Raises:
        argparse.ArgumentTypeError: As :func:`positive`.
    """
    return tuple(positive(word.strip()) for word in text.split(","))


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """A report for programs, and leave to replace one."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to FILE")
    parser.add_argument("--overwrite", action="store_true", help="replace output files that exist")


class InsteadOf(argparse.Action):
    """An option that is given instead of a positional argument, which is required otherwise.

    An optional positional (``nargs="?"``) is no way to say this: argparse takes it as absent when options stand between
    it and the positional before.
    """

    def __init__(self, *args: Any, argument: argparse.Action, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._argument = argument

    def __call__(self, _: object, namespace: argparse.Namespace, values: Any, *__: object) -> None:
        """Take the value; the argument may now be absent."""
        self._argument.required = False
        setattr(namespace, self.dest, values)
