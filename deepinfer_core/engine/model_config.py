"""From the user's word for a model to its architecture, with its config file alone: no weight is read or fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.weights.check import CONFIG_FILE, read_config
from deepinfer_core.weights.locate import Download, locate

RELEASED = "released"
"""The word for the released model's config, which ships with the project (``models/released``)."""

RELEASED_HUB_ID = "deepseek-ai/DeepSeek-V4.1-Flash"
"""Its repository on the hub, answered from the shipped config as well, unless there is a folder of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a config file says about a model.

    Attributes:
        model: The user's word.
        folder: Where the config file is.
        architecture: The model's shape.
        notes: What is unusual about the file but harmless.
    """

    model: str
    folder: Path
    architecture: ModelArchitecture
    notes: tuple[str, ...]

    @property
    def is_shipped(self) -> bool:
        """Whether this is the released model's config as it ships with the project."""
        return self.folder == _SHIPPED


def fetch_config(hub_id: str, cache_dir: str = "") -> str:
    """Bring the config file of a hub repository, and nothing else, to a cache folder; returns the folder it is in."""
    import huggingface_hub

    return str(Path(huggingface_hub.hf_hub_download(hub_id, CONFIG_FILE, cache_dir=cache_dir or None)).parent)


def find_config(model: str, *, download: Download = fetch_config) -> ModelConfig:
    """Read the config of a model.

    Args:
        model: A folder, a hub id, ``tiny``, or ``released`` (or its hub id) for the config that ships with the project.
        download: Fetches the config of a hub id.

    Raises:
        CheckpointError: Nothing of that name is there or can be fetched, or it holds no config.
        ConfigError: The config file is wrong; all problems are in it.
    """
    is_released = model == RELEASED or (model == RELEASED_HUB_ID and not Path(model).is_dir())
    folder = _SHIPPED if is_released else locate(model, download=download)
    architecture, notes = read_config(folder)
    return ModelConfig(model=model, folder=folder, architecture=architecture, notes=notes)


_SHIPPED = Path(__file__).parent.parent / "models" / RELEASED
