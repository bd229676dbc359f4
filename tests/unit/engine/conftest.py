"""The tokenizers of the two checkpoints that the project has, and folders with changed copies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.config.checkpoint import read_architecture
from deepinfer_core.engine.tokenizer import Tokenizer, load_tokenizer

ROOT = Path(__file__).parents[3]
FOLDERS = {"tiny": ROOT / "deepinfer_core/models/tiny", "mini_b": ROOT / "tests/golden/mini_b/checkpoint"}

ChangedCopy = Callable[..., Path]


def architecture_in(folder: Path) -> ModelArchitecture:
    return read_architecture(json.loads((folder / "config.json").read_text()))[0]


@pytest.fixture(scope="session")
def architecture() -> ModelArchitecture:
    return architecture_in(FOLDERS["tiny"])


@pytest.fixture(scope="session")
def tokenizers_by_model() -> dict[str, Tokenizer]:
    return {model: load_tokenizer(folder, architecture_in(folder)) for model, folder in FOLDERS.items()}


@pytest.fixture(scope="session")
def tiny(tokenizers_by_model: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers_by_model["tiny"]


@pytest.fixture
def changed_copy(tmp_path: Path) -> ChangedCopy:
    """Copies the tiny model's tokenizer files to a new folder, each passed through a function of its parsed content."""

    def copy(**change: Callable[[dict[str, Any]], None]) -> Path:
        for name in ("tokenizer", "tokenizer_config"):
            content = json.loads((FOLDERS["tiny"] / f"{name}.json").read_text())
            change.get(name, lambda content: None)(content)
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        shutil.copy(FOLDERS["tiny"] / "config.json", tmp_path)
        return tmp_path

    return copy
