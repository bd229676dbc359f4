"""Pages and pictures that are made from the code are those that the code makes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.architecture.source_tree import ROOT


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Compare the files of a folder with what ``docs/generate.py`` would write."""
    command = [sys.executable, "docs/generate.py", "--check", "--out", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_generated_files_are_up_to_date() -> None:
    done = check(ROOT / "docs")

    assert done.returncode == 0, done.stderr


def test_changed_missing_and_left_over_files_are_noticed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "docs/ops/norm.md").write_text("# Ops: norm\n", encoding="utf-8")
    (tmp_path / "docs/configuration.md").unlink()
    (tmp_path / "docs/ops/of_old.md").write_text("# Ops: of old\n", encoding="utf-8")

    done = check(tmp_path / "docs")

    assert done.returncode == 1
    assert [line.split()[0] for line in done.stderr.splitlines()] == [
        "configuration.md",
        "ops/norm.md",
        "ops/of_old.md",
    ]
