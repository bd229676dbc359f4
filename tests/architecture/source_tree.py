"""The project's own source files, as the architecture tests read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("deepinfer_core", "deepinfer_cuda", "deepinfer_ascend")


def modules(*folders: str) -> list[Path]:
    """Python files below the given folders of the repository, as paths relative to its root."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py") if "build" not in path.parts)
    return sorted(path.relative_to(ROOT) for path in found)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, nested ones included."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
