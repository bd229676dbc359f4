"""What every test gets: fixed seeds, one thread, no setting from the environment of whoever runs it, and the kit."""

from __future__ import annotations

import logging
import os
import random
import sys
import zlib
from collections.abc import Iterator

import pytest

pytest_plugins = ["deepinfer_core.conformance.plugin"]  # adds --accelerator, which is cpu unless asked otherwise


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the length of the soak (``tests/soak``); ``nox -s soak`` asks for ten minutes."""
    parser.addoption("--soak-seconds", default="60", metavar="S", help="length of the soak test (default: 60)")


def pytest_configure() -> None:
    """Before anything is imported: tests decide what the environment says, and parallel runs share two cores."""
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        del os.environ[name]
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """One seed for each test, derived from its id, so that a test repeats alone as it ran in company."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.fixture(autouse=True)
def _logger_as_found() -> Iterator[None]:
    """Commands that run in this process set the project's log level and handler; the next test starts without them."""
    root = logging.getLogger("deepinfer")
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
