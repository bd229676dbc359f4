"""The config of the released model, written from the specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def released() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "released_config.json").read_text())
