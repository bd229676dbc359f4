"""Limits that only this backend needs; the general ones are in ``deepinfer_core.ops.limits``."""

from __future__ import annotations

import importlib.metadata

from deepinfer_core.ops.limits import Limit, Site


def needs_release(distribution: str, series: str) -> Limit:
    """A distribution must be installed in a release of one series, e.g. ``2.8`` for 2.8.x.

    An import name alone does not say whose package it is: ``deep_gemm`` and ``flash_mla`` are also the names of
    empty placeholders on the package index.
    """
    return Limit(
        f"needs {distribution} {series}.x",
        lambda site: _version(distribution).startswith(f"{series}."),
        lambda site: f"{distribution} is {_version(distribution) or 'not installed'}",
    )


def group_width_multiple_of(number: int) -> Limit:
    """Channels of one group of a grouped linear map (a site that does not state them passes)."""
    return Limit(
        f"channels of a group must be a multiple of {number}",
        lambda site: (_group_width(site) or number) % number == 0,
        lambda site: f"a group has {_group_width(site)} channels",
    )


def _version(distribution: str) -> str:
    """The installed release, or an empty string."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _group_width(site: Site) -> int:
    """Input channels of one group, stated as ``I`` or as heads of the attention output; 0 when not stated."""
    width = site.sizes.get("I", site.sizes.get("N", 0) * site.sizes.get("D", 0))
    return width // site.attributes.get("groups", 1)
