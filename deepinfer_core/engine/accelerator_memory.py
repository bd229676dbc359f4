"""How much memory an accelerator has: from the shipped table, or from the device itself when it is here."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from deepinfer_core.backend import registry
from deepinfer_core.errors import ConfigError, nearest

MIB = 2**20
_TABLE = Path(__file__).with_name("accelerator_memory.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorMemory:
    """The memory of one device.

    Attributes:
        name: What the user calls it.
        memory_bytes: All of it.
        source: Where the number comes from.
    """

    name: str
    memory_bytes: int
    source: str


def known_accelerators() -> tuple[AcceleratorMemory, ...]:
    """Every accelerator of the shipped table, in its order."""
    entries = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(
        AcceleratorMemory(name=name, memory_bytes=entry["memory_mib"] * MIB, source=entry["source"])
        for name, entry in entries.items()
    )


def find_accelerator(name: str) -> AcceleratorMemory:
    """The memory of an accelerator.

    Args:
        name: A name of the table, in any case, or a backend that can be used on this machine (``auto`` for the best),
            which is asked for its device's memory.

    Raises:
        ConfigError: The name is neither; says which names are known.
        BackendNotFound: A backend of that name is installed, but has no device here.
    """
    known = {entry.name: entry for entry in known_accelerators()}
    if name.lower() in known:
        return known[name.lower()]
    backends = (registry.AUTO, *registry.ALIASES, *registry.backend_names())
    if name in backends:
        return _of_this_machine(name)
    raise ConfigError(
        f"the memory of accelerator {name!r} is not known; name one of {', '.join(known)}, a backend that can be used "
        f"here ({', '.join(backends)}), or give --memory-gib{nearest(name.lower(), (*known, *backends))}",
        "fit",
    )


def _of_this_machine(name: str) -> AcceleratorMemory:
    info = registry.select(name)
    device = registry.load(info).device()
    described = device.facts.get("name", "unknown device")
    return AcceleratorMemory(
        name=name, memory_bytes=device.memory().total_bytes, source=f"backend {info.name} on this machine, {described}"
    )
