"""Settings from a file, the environment and the caller -> one frozen record, and where each value came from.

A later source wins: settings file, environment, what the caller gives. Tables of ``speculative_config`` are merged.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deepinfer_core.config.engine import EngineConfig
from deepinfer_core.config.env import Environment
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.config.speculation import merged
from deepinfer_core.errors import ConfigError, nearest

NAMES = tuple(field.name for field in fields(EngineConfig))
_TABLE = "speculative_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The settings of an engine.

    Attributes:
        config: The record.
        sources: Where each value came from, by name: ``default``, ``file PATH``, ``environment``, ``given``.
    """

    config: EngineConfig
    sources: Mapping[str, str]


def resolve(given: Mapping[str, Any], environment: Environment) -> Resolved:
    """Merge all sources.

    Args:
        given: Names are the fields of :class:`EngineConfig`; ``fallback`` may be a name.
        environment: What the process environment sets.

    Raises:
        ConfigError: A name is not a setting, a value is not allowed, or the settings file cannot be read.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(NAMES, "default")
    for source, layer in _layers(given, environment):
        problems = [f"{n}={v!r} is not a setting{nearest(n, NAMES)}" for n, v in layer.items() if n not in NAMES]
        if problems:
            raise ConfigError(problems, source)
        layer_sources = dict.fromkeys(layer, source)
        before, after = values.get(_TABLE), layer.get(_TABLE)
        values.update(layer)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            values[_TABLE] = merged(before, after)
            layer_sources[_TABLE] = f"{source} over {sources[_TABLE]}"
        sources.update(layer_sources)
    if "model" not in values:
        raise ConfigError("no model is named; give a folder, a hub id or the word tiny", "settings")
    if isinstance(values.get("fallback"), str):
        values["fallback"] = _policy(values["fallback"])
    return Resolved(config=EngineConfig(**values), sources=sources)


def _layers(given: Mapping[str, Any], environment: Environment) -> list[tuple[str, Mapping[str, Any]]]:
    file = [(f"file {environment.config}", _read(environment.config))] if environment.config else []
    named = {
        "accelerator": environment.accelerator,
        "fallback": environment.fallback,
        "download_dir": str(environment.cache_dir) if environment.cache_dir else None,
    }
    return [*file, ("environment", {n: v for n, v in named.items() if v is not None}), ("given", given)]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"DEEPINFER_CONFIG names {path}, which cannot be read: {error.strerror}"
        raise ConfigError(reason, "settings") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", "settings") from error


def _policy(name: str) -> FallbackPolicy:
    names = [policy.value for policy in FallbackPolicy]
    if name not in names:
        hint = nearest(name, names)
        raise ConfigError(f"fallback={name!r} is unknown; choose one of {', '.join(names)}{hint}", source="settings")
    return FallbackPolicy(name)
