"""From what a user asks of speculative decoding to what a model is bound with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.config.speculation import AUTO, NO_CALIBRATION, DraftSettings
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.speculation import SpeculativeConfig


def draft_settings(
    config: SpeculativeConfig | None, architecture: ModelArchitecture, folder: Path, *, batch_invariant: bool
) -> DraftSettings | None:
    """Resolve the settings for a model, before its weights are read.

    Args:
        config: What was asked; None for plain decoding.
        architecture: The model's shape.
        folder: Its checkpoint, beside which a calibration may lie.
        batch_invariant: Whether tokens must be reproducible.

    Raises:
        ConfigError: The model makes no drafts, fewer of them, or the calibration is not its own.
    """
    if config is None:
        return None
    num_drafts = config.draft_length(architecture)
    return DraftSettings(
        num_drafts=num_drafts,
        is_coupled=config.is_coupled(batch_invariant=batch_invariant),
        is_adaptive=config.verification == "adaptive",
        temperatures=_temperatures(config.calibration, num_drafts, folder),
    )


def _temperatures(calibration: str | tuple[float, ...], num_drafts: int, folder: Path) -> tuple[float, ...]:
    """A temperature for each draft."""
    if isinstance(calibration, tuple):
        if len(calibration) != num_drafts:
            raise ConfigError(
                f"calibration has {len(calibration)} temperatures for {num_drafts} drafts; give one for each",
                source="speculative_config",
            )
        return tuple(map(float, calibration))
    del folder
    if calibration in (AUTO, NO_CALIBRATION):
        return (1.0,) * num_drafts
    raise ConfigError("no calibration", source="speculative_config")
