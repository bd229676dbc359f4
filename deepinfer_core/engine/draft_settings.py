"""From what a user asks of speculative decoding to what a model is bound with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer_core.config.speculation import AUTO, NO_CALIBRATION, DraftSettings
from deepinfer_core.engine.cache_identity import checkpoint_fingerprint
from deepinfer_core.errors import ConfigError
from deepinfer_core.speculation.calibration_file import find_calibration, read_calibration

if TYPE_CHECKING:
    from deepinfer_core.config.architecture import ModelArchitecture
    from deepinfer_core.config.speculation import SpeculativeConfig


def draft_settings(
    config: SpeculativeConfig | None,
    architecture: ModelArchitecture,
    folder: Path,
    *,
    batch_invariant: bool,
    load_format: str = "auto",
) -> DraftSettings | None:
    """Resolve the settings for a model, before its weights are read.

    Args:
        config: What was asked; None for plain decoding.
        architecture: The model's shape.
        folder: Its checkpoint, beside which a calibration may lie.
        batch_invariant: Whether tokens must be reproducible.
        load_format: Where the weights come from; a calibration belongs to weights.

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
        temperatures=_temperatures(config.calibration, num_drafts, architecture, folder, load_format),
    )


def _temperatures(
    calibration: str | tuple[float, ...],
    num_drafts: int,
    architecture: ModelArchitecture,
    folder: Path,
    load_format: str,
) -> tuple[float, ...]:
    """A temperature for each draft; those of a whole block serve shorter ones, too."""
    if isinstance(calibration, tuple):
        if len(calibration) != num_drafts:
            raise ConfigError(
                f"calibration has {len(calibration)} temperatures for {num_drafts} drafts; give one for each",
                source="speculative_config",
            )
        return tuple(map(float, calibration))
    if calibration == AUTO:
        file = find_calibration(folder) if load_format != "dummy" else None
    else:
        file = Path(calibration).expanduser() if calibration != NO_CALIBRATION else None
    if file is None or architecture.draft is None:
        return (1.0,) * num_drafts
    fingerprint = checkpoint_fingerprint(folder, load_format)
    found = read_calibration(file, block_size=architecture.draft.block_size, checkpoint=fingerprint)
    return found.temperatures[:num_drafts]
