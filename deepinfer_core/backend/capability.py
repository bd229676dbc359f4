"""What a backend can do beyond its ops; every default is the conservative one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Abilities that the engine asks about.

    Attributes:
        graph_capture: Device work can be recorded once and replayed.
        no_sync_scope: ``Device.no_sync`` really raises when the host waits for the device.
        pinned_memory: Host memory can be pinned for asynchronous copies.
        streams: Work on two streams can overlap.
        asynchronous: Ops return before their work is done, so that the host can prepare the next step meanwhile.
        batch_invariant: Every op the text graph needs has an implementation that is row-invariant.
        weight_copies: Choices of ``EngineConfig.weight_copies`` that the backend knows; ``auto`` is its own way.
    """

    graph_capture: bool = False
    no_sync_scope: bool = False
    pinned_memory: bool = False
    streams: bool = False
    asynchronous: bool = False
    batch_invariant: bool = False
    weight_copies: tuple[str, ...] = ("auto",)
