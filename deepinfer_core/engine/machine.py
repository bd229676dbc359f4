"""The machine and the software of a run, for reports that others compare with theirs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from deepinfer_core.backend.plugins import Plugins

_NAME = re.compile(r"[\w.-]+")
"""What a requirement begins with."""


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and system; nothing that names the machine or its user."""
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def describe_versions(backend: str) -> dict[str, str]:
    """Python, this package, the one that offers a backend, and everything that the two require."""
    offered_by = [provider.distribution for provider in Plugins().providers() if provider.name == backend]
    versions = {"python": platform.python_version()}
    for distribution in ("deepinfer-core", *offered_by):
        needed = (r for r in importlib.metadata.requires(distribution) or () if "extra ==" not in r)
        for package in (distribution, *(_NAME.findall(requirement)[0] for requirement in needed)):
            versions[package] = _version(package)
    return versions


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # required on another system, or left out on purpose
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
