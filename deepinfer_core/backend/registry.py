"""Which backends are there, which can be used, and which one serves an accelerator; no tensor library is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from deepinfer_core.backend.interface import INTERFACE_VERSION, ProbeResult
from deepinfer_core.backend.plugins import Plugins, Provider
from deepinfer_core.config import env
from deepinfer_core.errors import BackendLoadError, BackendNotFound, DeepInferError, nearest
from deepinfer_core.logging import get_logger

if TYPE_CHECKING:
    from deepinfer_core.backend.interface import Backend, BackendInfo

AUTO = "auto"
"""The accelerator that means: the best one that can be used here."""

ALIASES = {"nvidia": "cuda"}
"""Other projects' words for an accelerator."""

SIBLINGS = ("cuda", "ascend")
"""Backends that are distributions of this project; named so that an error can say what to install."""

_INSTALLED = Plugins()
_INFO_ATTRIBUTES = ("name", "interface_version", "priority", "install_hint", "probe", "prepare_process", "load")
_log = get_logger(__name__)

State = Literal["usable", "unusable", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendState:
    """One installed backend on this machine.

    Attributes:
        name: What ``accelerator`` has to say to get it.
        state: ``usable``, ``unusable`` (nothing to run it on, or it refuses) or ``broken`` (it does not import, is
            offered twice, or was made for another version of core).
        reason: The state in words.
        distribution: The package that offers it.
        version: Version of that package.
        priority: The usable backend with the highest priority serves ``auto``; a negative one never does.
        device_count: Devices found, whether usable or not.
        install_hint: What makes it usable.
    """

    name: str
    state: State
    reason: str
    distribution: str
    version: str
    priority: int = -1
    device_count: int = 0
    install_hint: str = ""


def backend_names(plugins: Plugins = _INSTALLED) -> tuple[str, ...]:
    """Names of the installed backends, sorted; none is imported."""
    return tuple(sorted({provider.name for provider in plugins.providers()}))


def describe_backends(plugins: Plugins = _INSTALLED) -> list[BackendState]:
    """Probe every installed backend. One that is broken is described as such and harms no other."""
    offers: dict[str, list[Provider]] = {}
    for provider in plugins.providers():
        offers.setdefault(provider.name, []).append(provider)
    return [_describe(name, providers, plugins) for name, providers in sorted(offers.items())]


def select(accelerator: str = AUTO, plugins: Plugins = _INSTALLED) -> BackendInfo:
    """The backend that serves an accelerator.

    Args:
        accelerator: ``auto``, the name of a backend, or another project's word for one (:data:`ALIASES`).
        plugins: Where to look; the installed ones by default.

    Raises:
        BackendNotFound: No such backend, or none that can be used here; says what was found, why the others
            cannot be used, and what to install.
        BackendLoadError: The backend is installed but broken.
    """
    name = ALIASES.get(accelerator, accelerator)
    if name == AUTO:
        return _select_best(plugins)
    info = open_info(name, plugins)
    probe = _probe(info)
    if not probe.usable:
        raise BackendNotFound(
            f"accelerator {accelerator!r} cannot be used here: {probe.reason}\n"
            f"{_lines(plugins, besides=name)}\nTo use {name}: {info.install_hint}"
        )
    _log.info("accelerator %s: backend %s (%s)", accelerator, name, probe.reason)
    return info


def open_info(name: str, plugins: Plugins = _INSTALLED) -> BackendInfo:
    """Import the description of an installed backend, usable or not.

    Raises:
        BackendNotFound: There is no such backend.
        BackendLoadError: It does not import, is not a ``BackendInfo``, or was made for another version of core.
    """
    if name not in backend_names(plugins):
        raise BackendNotFound(_unknown(name, plugins))
    return _open(name, plugins)


def _open(name: str, plugins: Plugins) -> BackendInfo:
    """Import what the entry point names, and check that it is a ``BackendInfo`` of this core's version."""
    info = plugins.open(name)
    missing = [attribute for attribute in _INFO_ATTRIBUTES if not hasattr(info, attribute)]
    if missing:
        raise BackendLoadError(f"backend {name!r}: its entry point names {info!r}, which has no {', '.join(missing)}")
    if info.interface_version != INTERFACE_VERSION:
        older = "the backend" if info.interface_version < INTERFACE_VERSION else "deepinfer-core"
        versions = (
            f"version {info.interface_version} of the backend interface, and this core has version {INTERFACE_VERSION}"
        )
        raise BackendLoadError(f"backend {name!r} was made for {versions}; upgrade {older}")
    return info


def load(info: BackendInfo) -> Backend:
    """Set the process up as the backend needs it, then import it.

    Raises:
        BackendLoadError: A library is missing or does not load; the cause is chained.
    """
    added = env.set_missing(info.prepare_process())
    for name, value in added.items():
        _log.info("backend %s set %s=%s", info.name, name, value)
    if added and "torch" in sys.modules:
        _log.warning("backend %s set %s, but torch was imported before and may not notice", info.name, ", ".join(added))
    try:
        return info.load()
    except DeepInferError:
        raise
    except (
        ImportError,
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError: torch's, when an extension of it does not load
        raise BackendLoadError(
            f"backend {info.name!r} does not load: {error}\nTo use it: {info.install_hint}"
        ) from error


def _probe(info: BackendInfo) -> ProbeResult:
    try:
        return info.probe()
    except Exception as error:  # the code of others, which must not raise: say that it did
        raise BackendLoadError(f"backend {info.name!r}: its probe failed: {type(error).__name__}: {error}") from error


def _describe(name: str, offers: Sequence[Provider], plugins: Plugins) -> BackendState:
    distribution, version = ", ".join(o.distribution for o in offers), ", ".join(o.version for o in offers)
    try:
        info = _open(name, plugins)
        probe = _probe(info)
    except BackendLoadError as error:
        return BackendState(name=name, state="broken", reason=str(error), distribution=distribution, version=version)
    return BackendState(
        name=name,
        state="usable" if probe.usable else "unusable",
        reason=probe.reason,
        distribution=distribution,
        version=version,
        priority=info.priority,
        device_count=probe.device_count,
        install_hint=info.install_hint,
    )


def _select_best(plugins: Plugins) -> BackendInfo:
    """The usable backend with the highest priority; says which, and why not the others."""
    states = describe_backends(plugins)
    usable = [state for state in states if state.state == "usable" and state.priority >= 0]
    if not usable:
        raise BackendNotFound(f"no accelerator can be used here\n{_lines(plugins)}")
    top = max(state.priority for state in usable)
    best, *ties = (state for state in usable if state.priority == top)
    if ties:
        names = " and ".join(repr(state.name) for state in (best, *ties))
        raise BackendNotFound(
            f"accelerator 'auto' is not decided: {names} have the same priority {top}; name one of them"
        )
    for state in states:
        if state.state == "broken":
            _log.warning("%s", state.reason)
    # The first reason only: `deepinfer backends` tells the rest. A backend that auto never takes is not worth a word.
    passed_over = [
        f"; not {s.name}: {s.reason.split(';')[0] if s.state != 'usable' else 'lower priority'}"
        for s in states
        if s is not best and s.priority >= 0
    ]
    _log.info("accelerator auto: backend %s (%s)%s", best.name, best.reason, "".join(passed_over))
    return open_info(best.name, plugins)


def _unknown(name: str, plugins: Plugins) -> str:
    """What was asked for, the nearest name, what was found, and what to install."""
    names = backend_names(plugins)
    if name in SIBLINGS:
        hint, remedy = "", f"Try: pip install deepinfer-{name} (from a checkout: pip install ./deepinfer_{name})"
    else:
        hint = nearest(name.lower(), (*names, *SIBLINGS, *ALIASES, AUTO))
        remedy = "A backend is a package of its own: install the one for your hardware"
    found = ", ".join(names) or "none"
    return f"no backend named {name!r} is installed (found: {found}){hint}\n{_lines(plugins)}\n{remedy}"


def _lines(plugins: Plugins, besides: str = "") -> str:
    """Every other installed backend with its state and reason, one a line."""
    others = [state for state in describe_backends(plugins) if state.name != besides]
    lines = [f"  {state.name} is {state.state}: {state.reason}" for state in others]
    return "\n".join(lines or ["  no other backend is installed"])
