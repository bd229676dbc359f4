"""Files that a command writes: refused before any work when they cannot be written or would replace something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ConfigError


def check_outputs(files: Mapping[str, Path | None], *, overwrite: bool = False) -> None:
    """Make sure that every file can be written, without changing any.

    Args:
        files: Option -> the file that it names; None where it was not given.
        overwrite: A file with something in it may be replaced.

    Raises:
        ConfigError: Some cannot be written, or hold something already; all problems are listed.
    """
    named = {option: file for option, file in files.items() if file is not None}
    problems = [
        f"{option} {file}: {problem}" for option, file in named.items() if (problem := _problem(file, overwrite))
    ]
    if len(set(named.values())) < len(named):
        problems.append(f"{' and '.join(named)} name the same file; give each its own")
    if problems:
        raise ConfigError(problems, source="output")


def write_json(file: Path, report: Mapping[str, Any]) -> None:
    """Write a report, readable for people and programs.

    Raises:
        ConfigError: The file system refuses.
    """
    try:
        file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", source="output") from error


def _problem(file: Path, overwrite: bool) -> str:
    """Why a file cannot be written; empty when it can."""
    try:
        existed = file.exists()
        if existed and not overwrite and file.stat().st_size:
            return "it exists; give --overwrite to replace it, or another name"
        with file.open("ab"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        return f"it cannot be written ({error.strerror}); give a file in a folder that exists and may be written to"
    return ""
