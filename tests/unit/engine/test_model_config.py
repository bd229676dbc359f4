"""A model's config, found without its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deepinfer_core.engine.model_config import RELEASED_HUB_ID, find_config
from deepinfer_core.errors import CheckpointError, ConfigError

ROOT = Path(__file__).parents[3]


def must_not_download(hub_id: str) -> str:
    pytest.fail(f"{hub_id} was downloaded")


@pytest.mark.parametrize("word", ["released", RELEASED_HUB_ID])
def test_the_released_model_needs_no_network(word: str) -> None:
    config = find_config(word, download=must_not_download)

    assert config.is_shipped
    assert config.architecture.num_layers == 40
    assert config.architecture.experts.num_experts == 384


def test_the_shipped_config_is_the_one_that_the_specification_lists() -> None:
    shipped = json.loads((ROOT / "deepinfer_core/models/released/config.json").read_text())
    from_specification = json.loads((ROOT / "tests/unit/config/released_config.json").read_text())

    assert shipped == from_specification


def test_a_folder_with_the_name_of_the_repository_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / RELEASED_HUB_ID
    shutil.copytree(ROOT / "deepinfer_core/models/tiny", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.chdir(tmp_path)

    config = find_config(RELEASED_HUB_ID, download=must_not_download)

    assert config.architecture.num_layers == 8
    assert not config.is_shipped


def test_another_hub_id_is_fetched(tmp_path: Path) -> None:
    shutil.copy(ROOT / "deepinfer_core/models/tiny/config.json", tmp_path)
    asked: list[str] = []

    def download(hub_id: str) -> str:
        asked.append(hub_id)
        return str(tmp_path)

    assert find_config("someone/model", download=download).architecture.num_layers == 8
    assert find_config(f"{RELEASED_HUB_ID}-1017", download=download).architecture.num_layers == 8
    assert asked == ["someone/model", f"{RELEASED_HUB_ID}-1017"]


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        find_config(str(tmp_path))


def test_a_wrong_config_is_refused_with_every_problem(tmp_path: Path) -> None:
    config = json.loads((ROOT / "deepinfer_core/models/released/config.json").read_text())
    del config["text_config"]["hidden_size"]
    config["quantization_config"]["scale_fmt"] = "float"
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=r"hidden_size[\s\S]*scale_fmt"):
        find_config(str(tmp_path))
