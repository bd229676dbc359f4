"""The environment of the process: the only module that reads or changes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.errors import ConfigError, nearest

PREFIX = "DEEPINFER_"
NAMES = {
    "DEEPINFER_CONFIG": "settings file",
    "DEEPINFER_ACCELERATOR": "what to run on: auto, or the name of a backend",
    "DEEPINFER_LOG_LEVEL": "debug, info, warning or error",
    "DEEPINFER_CACHE_DIR": "folder for models that are downloaded (default: the hub library's own)",
    "DEEPINFER_FALLBACK": "strict, decompose or allow_reference",
}
"""Every name that is read, and what it sets. Any other name with the prefix is an error."""

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the environment sets; None where it says nothing, so that a settings file may."""

    config: Path | None = None
    accelerator: str | None = None
    log_level: str | None = None
    cache_dir: Path | None = None
    fallback: FallbackPolicy | None = None


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Parse every ``DEEPINFER_*`` variable; an empty value counts as not set.

    Raises:
        ConfigError: A name is not known or a value is not allowed; every problem is listed.
    """
    problems = [
        f"{name} is not a setting{nearest(name, tuple(NAMES))}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in NAMES
    ]
    log_level = environ.get("DEEPINFER_LOG_LEVEL", "").lower()
    if log_level and log_level not in LOG_LEVELS:
        problems.append(_not_allowed("DEEPINFER_LOG_LEVEL", log_level, LOG_LEVELS))
    fallback = environ.get("DEEPINFER_FALLBACK", "")
    policies = tuple(policy.value for policy in FallbackPolicy)
    if fallback and fallback not in policies:
        problems.append(_not_allowed("DEEPINFER_FALLBACK", fallback, policies))
    if problems:
        raise ConfigError(problems, source="environment")
    return Environment(
        config=_path(environ.get("DEEPINFER_CONFIG", "")),
        accelerator=environ.get("DEEPINFER_ACCELERATOR") or None,
        log_level=log_level or None,
        cache_dir=_path(environ.get("DEEPINFER_CACHE_DIR", "")),
        fallback=FallbackPolicy(fallback) if fallback else None,
    )


def set_missing(variables: Mapping[str, str]) -> dict[str, str]:
    """Set variables of vendors' libraries for this process; what the user has set stays.

    Returns:
        The variables that were set.
    """
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    return added


def _not_allowed(name: str, value: str, allowed: tuple[str, ...]) -> str:
    return f"{name}={value!r} is not allowed (one of {', '.join(allowed)}){nearest(value, allowed)}"


def _path(value: str) -> Path | None:
    return Path(value).expanduser() if value else None
