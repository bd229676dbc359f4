"""Sizes above the guidance: printed for whoever reviews, never a failure (docs/contributing.md)."""

from __future__ import annotations

import warnings

from tests.architecture.source_tree import PACKAGES, ROOT, functions, modules

FILE_LINES = 300
KERNEL_FILE_LINES = 800
FUNCTION_LINES = 40


def oversized() -> list[str]:
    """One line for each file or function that is longer than the guidance."""
    found: list[str] = []
    for path in modules(*PACKAGES):
        is_kernel = "kernels" in path.parts
        num_lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if num_lines > (KERNEL_FILE_LINES if is_kernel else FILE_LINES):
            found.append(f"{path}: {num_lines} lines")
        for function in [] if is_kernel else functions(path):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{path}:{function.lineno}: {function.name} has {length} lines")
    return found


def test_sizes_above_the_guidance_are_printed() -> None:
    for line in oversized():
        warnings.warn(line, stacklevel=1)
