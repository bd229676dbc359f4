"""What a backend is: a light description found by entry point, and a table of implementations.

A backend needs no base class; it has the attributes and methods of these protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from deepinfer_core.ops.limits import Limit

if TYPE_CHECKING:
    from deepinfer_core.backend.capability import Capabilities
    from deepinfer_core.backend.device import Device
    from deepinfer_core.ops.declare import Op
    from deepinfer_core.ops.limits import Site

INTERFACE_VERSION = 1
"""Raised when these protocols change; the registry refuses a backend made for another version."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether a backend can be used on this machine, and why not."""

    usable: bool
    reason: str
    device_count: int = 0


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The shape of one step, known on the host before it runs.

    Attributes:
        rows: Query rows of the step, padding included.
        sequences: Sequences of the step.
        max_context: Longest context in tokens.
        prefill: True when prompt chunks are processed, False in decode.
    """

    rows: int
    sequences: int
    max_context: int
    prefill: bool


@dataclass(frozen=True, slots=True)
class Implementation:
    """One backend's implementation of one op.

    Attributes:
        run: Called like the op's reference, with packed weights and, if ``plan`` is set, ``plan=``.
        limits: All must hold for a call site to use it; they are stated, never discovered.
        pack: Weights of the op by parameter name -> the same names in the backend's layout. Called once
            at load; None keeps them as they are in the checkpoint.
        plan: Prepares one step (once per step, outside graph capture); None when nothing is prepared.
        row_invariant: A row's bits do not depend on the other rows or on its place among them.
        note: One line for the support matrix.
        workspace: Bytes of device memory that a call asks for besides those of its results, the most that are held at
            once by any step of at most the given size; it never shrinks when a size grows. None states nothing, and
            the report of the memory says so. ``pack`` and what ``plan`` returns are not in it.
    """

    run: Callable[..., Any]
    limits: tuple[Limit, ...] = ()
    pack: Callable[[Mapping[str, Any], Site], Mapping[str, Any]] | None = None
    plan: Callable[[PlanRequest], Any] | None = None
    row_invariant: bool = False
    note: str = ""
    workspace: Callable[[PlanRequest, Site], int] | None = None


def no_workspace(request: PlanRequest, site: Site) -> int:
    """The statement of an implementation that asks for nothing but its results."""
    del request, site
    return 0


@dataclass(frozen=True, slots=True)
class OpTable:
    """All implementations of a backend, in the order in which the binder tries them."""

    entries: Mapping[Op[..., Any], tuple[Implementation, ...]] = field(default_factory=dict)

    def of(self, op: Op[..., Any]) -> tuple[Implementation, ...]:
        return self.entries.get(op, ())


class Backend(Protocol):
    """A loaded backend. It owns its devices' memory and never changes core or a library."""

    name: str

    @property
    def table(self) -> OpTable:
        """Every op that this backend claims, native ones only."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Abilities that are not about one op."""
        ...

    def device(self, index: int = 0) -> Device:
        """The device with this index.

        Raises:
            CapacityError: There is no such device.
        """
        ...


class BackendInfo(Protocol):
    """What the entry point names: importable without torch and without a driver."""

    name: str
    interface_version: int
    priority: int
    """The usable backend with the highest priority serves ``accelerator="auto"``."""
    install_hint: str
    """The command that makes it usable, for error messages."""

    def probe(self) -> ProbeResult:
        """Look for devices without starting a driver context; never raises."""
        ...

    def prepare_process(self) -> Mapping[str, str]:
        """Environment variables to set before torch starts; the registry sets and logs them."""
        ...

    def load(self) -> Backend:
        """Import what is heavy and return the backend.

        Raises:
            ImportError, OSError: A library is missing or does not load; the registry wraps them.
        """
        ...
