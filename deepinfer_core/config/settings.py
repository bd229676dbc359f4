"""Settings by name -> the frozen records; unknown names are errors with the nearest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from deepinfer_core.config.engine import EngineConfig
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.errors import ConfigError, nearest


def engine_config(settings: Mapping[str, Any]) -> EngineConfig:
    """An engine's settings from keyword arguments.

    Args:
        settings: Names are the fields of :class:`EngineConfig`; ``fallback`` may be a name.

    Raises:
        ConfigError: A name is not a setting or a value is not allowed.
    """
    known = [field.name for field in fields(EngineConfig)]
    problems = [
        f"{name}={value!r} is not a setting{nearest(name, known)}"
        for name, value in settings.items()
        if name not in known
    ]
    if problems:
        raise ConfigError(problems, source="engine")
    values = dict(settings)
    if isinstance(values.get("fallback"), str):
        values["fallback"] = _policy(values["fallback"])
    return EngineConfig(**values)


def _policy(name: str) -> FallbackPolicy:
    names = [policy.value for policy in FallbackPolicy]
    if name not in names:
        raise ConfigError(
            f"fallback={name!r} is unknown; choose one of {', '.join(names)}{nearest(name, names)}", source="engine"
        )
    return FallbackPolicy(name)
