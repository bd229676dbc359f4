"""Optional packages that a command may need."""

from __future__ import annotations

import importlib.util

from deepinfer_core.errors import ConfigError


def require_plotting(option: str) -> None:
    """Raise unless a picture can be made.

    Args:
        option: The one that asks for a picture.

    Raises:
        ConfigError: matplotlib is not installed; says what to install.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "a picture needs matplotlib, which is not installed: pip install 'deepinfer-core[plot]' "
            f"(from a checkout: pip install '.[plot]'), or leave {option} out",
            source=option,
        )
