"""Python that runs with Triton's interpreter, which a process chooses before it imports a kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def interpreted_lines(source: str) -> list[str]:
    """What a script prints in a process of its own; it must succeed."""
    pytest.importorskip("triton", reason="the wheel of triton is for Linux")
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
