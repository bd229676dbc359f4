"""All calls at the released sizes, of every family; one module of this folder for each."""

from __future__ import annotations

import importlib
from pathlib import Path

CALLS = {
    f"{path.stem.removeprefix('released_')}/{name}": call
    for path in sorted(Path(__file__).parent.glob("released_*.py"))
    for name, call in importlib.import_module(f"tests.cuda.{path.stem}").CALLS.items()
}
