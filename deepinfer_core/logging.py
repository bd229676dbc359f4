"""Logger set-up: one line per record, on stderr, quiet unless asked."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

_ROOT = "deepinfer"


def get_logger(name: str) -> logging.Logger:
    """The logger of one module, below the project's root logger."""
    return logging.getLogger(f"{_ROOT}.{name.removeprefix('deepinfer_core.')}")


def configure(level: str) -> None:
    """Send the project's records of ``level`` and above to stderr; called once by the command line."""
    root = logging.getLogger(_ROOT)
    root.setLevel(level.upper())
    if not root.handlers:
        handler = _StandardError()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what ``sys.stderr`` is at the time, which a caller may have replaced or closed since."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr  # not setStream: it would flush the old stream, which may be closed
        super().emit(record)
