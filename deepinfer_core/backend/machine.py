"""The view of a machine that a probe needs; tests pass one with another file-system root."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def package_folder(name: str) -> Path | None:
    """Folder of an installed top-level package, found without importing it; None when it is not installed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Device nodes, libraries and packages of the host. Looking starts no driver context and imports nothing.

    Attributes:
        root: Root of the file system.
        load_library: Opens a shared library by name; raises OSError when it does not load.
        find_package: Folder of an installed package, or None.
    """

    root: Path = Path("/")
    load_library: Callable[[str], object] = ctypes.CDLL
    find_package: Callable[[str], Path | None] = package_folder

    def device_nodes(self, pattern: str) -> tuple[str, ...]:
        """Names in ``/dev`` that match a regular expression whole, sorted; empty when ``/dev`` cannot be read."""
        try:
            return tuple(
                sorted(node.name for node in (self.root / "dev").iterdir() if re.fullmatch(pattern, node.name))
            )
        except OSError:
            return ()

    def library_problem(self, name: str) -> str:
        """Why a shared library does not load: it is not there, or the loader's own words; empty when it loads."""
        try:
            self.load_library(name)
        except OSError as error:
            return (
                f"{name} not found"
                if str(error).startswith(f"{name}: cannot open")
                else f"{name} does not load: {error}"
            )
        return ""


def count_visible(num_devices: int, visible: str | None) -> int:
    """Devices left by a vendor's visibility variable, e.g. ``"0,2"``.

    Args:
        num_devices: Devices of the machine.
        visible: Value of the variable, None when it is not set. Ids end at the first that is empty or negative,
            as the vendors' own libraries read it.
    """
    if visible is None:
        return num_devices
    count = 0
    for device in visible.split(","):
        if not device.strip() or device.strip().startswith("-"):
            break
        count += 1
    return min(count, num_devices)
