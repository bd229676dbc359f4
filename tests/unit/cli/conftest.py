"""Running the command as a process, with backends that exist in a temporary folder only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]


@pytest.fixture
def offer(tmp_path: Path) -> Callable[[str, str, str], None]:
    """Install a distribution that offers one backend: ``offer(distribution, backend, source of its info module)``."""

    def install(distribution: str, backend: str, source: str) -> None:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(dedent(source))
        metadata = tmp_path / f"{module}-9.9.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.9\n")
        (metadata / "entry_points.txt").write_text(f"[deepinfer.backends]\n{backend} = {module}:Info\n")

    return install


@pytest.fixture
def deepinfer(tmp_path: Path) -> Run:
    """Run ``deepinfer`` in a process of its own, where the offered backends are installed."""

    def run(*arguments: str, environ: Mapping[str, str] | None = None) -> Result:
        code = "import sys; from deepinfer_core.cli.main import main; sys.exit(main())"
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), **(environ or {})}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run
