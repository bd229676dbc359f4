"""What is being tested: one backend on one device, and the ops it is tried with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer_core.backend.device import Device
from deepinfer_core.backend.interface import Backend
from deepinfer_core.config.fallback import FallbackPolicy
from deepinfer_core.ops.declare import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A backend under test.

    Attributes:
        backend: What is tested.
        device: Its device that runs the cases.
        catalogue: Every op it is tried with.
        policy: ``strict`` or ``decompose`` also demand that every op is run that way; the default
            demands nothing, so that a backend without any op of its own can pass.
    """

    backend: Backend
    device: Device
    catalogue: tuple[Op[..., Any], ...]
    policy: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE


def subject_of(
    backend: Backend, catalogue: Sequence[Op[..., Any]], policy: FallbackPolicy = FallbackPolicy.ALLOW_REFERENCE
) -> Subject:
    """The first device of a loaded backend as a subject."""
    return Subject(backend=backend, device=backend.device(), catalogue=tuple(catalogue), policy=policy)
