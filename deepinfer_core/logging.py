"""Logger set-up: one line per record, on stderr, quiet unless asked."""

from __future__ import annotations

import logging
import sys

_ROOT = "deepinfer"


def get_logger(name: str) -> logging.Logger:
    """The logger of one module, below the project's root logger."""
    return logging.getLogger(f"{_ROOT}.{name.removeprefix('deepinfer_core.')}")


def configure(level: str) -> None:
    """Send the project's records of ``level`` and above to stderr; called once by the command line."""
    root = logging.getLogger(_ROOT)
    root.setLevel(level.upper())
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
