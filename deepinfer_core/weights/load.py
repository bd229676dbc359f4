"""Load a checkpoint, or make a model of its shape with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deepinfer_core.config.architecture import ModelArchitecture
from deepinfer_core.errors import ConfigError
from deepinfer_core.logging import get_logger
from deepinfer_core.model.parameters import ModelParameters
from deepinfer_core.weights.assemble import assemble
from deepinfer_core.weights.check import check_checkpoint, read_config
from deepinfer_core.weights.dummy import DummyTensors
from deepinfer_core.weights.reader import TensorReader

LoadFormat = Literal["auto", "dummy"]
LOAD_FORMATS: tuple[LoadFormat, ...] = ("auto", "dummy")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in host memory.

    Attributes:
        folder: Where it came from.
        architecture: Its shape.
        parameters: Its weights as they stand in the checkpoint; dense ones are views of the mapped files.
        notes: What the check found unusual but harmless.
    """

    folder: Path
    architecture: ModelArchitecture
    parameters: ModelParameters
    notes: tuple[str, ...]


def load_model(
    folder: Path, *, load_format: str = "auto", admit: Callable[[ModelArchitecture], None] | None = None
) -> LoadedModel:
    """Load the model of a checkpoint folder.

    Config and headers are checked first, so a wrong checkpoint is refused before any weight is read.

    Args:
        folder: The checkpoint.
        load_format: ``auto`` reads the stored weights; ``dummy`` needs only the config file and makes
            deterministic random weights.
        admit: Called with the model's shape before any weight is read or made; it may refuse by raising.

    Raises:
        ConfigError: The config file is wrong or ``load_format`` is unknown.
        CheckpointError: Files or tensors are wrong. Either error holds every problem found.
    """
    if load_format not in LOAD_FORMATS:
        raise ConfigError(f"load_format is {load_format!r}; it must be one of {', '.join(LOAD_FORMATS)}")
    admit = admit if admit is not None else _admit
    loaded = _load_dummy(folder, admit) if load_format == "dummy" else _load_stored(folder, admit)
    for note in loaded.notes:
        _log.info("%s: %s", folder.name, note)
    return loaded


def _admit(architecture: ModelArchitecture) -> None:
    """Refuses nothing."""
    del architecture


def _load_stored(folder: Path, admit: Callable[[ModelArchitecture], None]) -> LoadedModel:
    report = check_checkpoint(folder)
    architecture = report.require_clean()
    admit(architecture)
    parameters = assemble(architecture, TensorReader(report.index))
    return LoadedModel(folder=folder, architecture=architecture, parameters=parameters, notes=report.notes)


def _load_dummy(folder: Path, admit: Callable[[ModelArchitecture], None]) -> LoadedModel:
    architecture, config_notes = read_config(folder)
    admit(architecture)
    notes = (*config_notes, "the weights are random (load_format dummy)")
    parameters = assemble(architecture, DummyTensors(architecture))
    return LoadedModel(folder=folder, architecture=architecture, parameters=parameters, notes=notes)
