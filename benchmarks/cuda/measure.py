"""What one measurement of a CUDA op is, and how it is timed: by replaying a graph, with weights that are not in L2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Work = Callable[[], Any]
LAUNCH_FLOOR_US = 3.0
"""Added to every floor: what one launch costs however little it does."""
_REPLAYS = 15
_LEAST_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One op at one shape.

    Attributes:
        group: Row of the table in the issue, e.g. ``fp8_linear``.
        name: What is measured, e.g. ``wq_b``.
        shape: Sizes in words, e.g. ``M=64 N=32768 K=1280``.
        bytes: Every input read once and every result written once.
        flop: Multiplications and additions.
        make: Builds the inputs on the GPU and returns works that are timed one after the other, each on its own
            weights (enough of them that together they exceed L2 several times, unless they are large already).
        peer: The same by torch or cuBLAS in bf16, or None.
        target: Share of the floor to reach, 0 for none.
        check: Largest relative error against an independent computation (float64 or torch), or None.
        tolerance: What ``check`` may be at most.
    """

    group: str
    name: str
    shape: str
    bytes: float
    flop: float
    make: Callable[[], list[Work]]
    peer: Callable[[], list[Work]] | None = None
    target: float = 0.0
    check: Callable[[], float] | None = None
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What this GPU reaches: copy bandwidth (bytes read and written) and bf16 matrix rate, measured in the same run."""

    bytes_per_s: float
    flop_per_s: float

    def floor_us(self, measurement: Measurement) -> float:
        """Shortest time that the ceilings allow."""
        seconds = max(measurement.bytes / self.bytes_per_s, measurement.flop / self.flop_per_s)
        return seconds * 1e6 + LAUNCH_FLOOR_US


def measure_ceilings() -> Ceilings:
    """A copy of 4 GiB, and a product of 8192-sided bf16 matrices of random numbers."""
    copy_us = _copy_us(4 << 30)
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product_us = time_us([lambda: torch.mm(a, b)])
    return Ceilings(bytes_per_s=2 * (4 << 30) / copy_us * 1e6, flop_per_s=2 * 8192**3 / product_us * 1e6)


def _copy_us(num_bytes: int) -> float:
    """By a kernel and not by a recorded copy: the copy engine, which graphs use, is slower than the multiprocessors."""
    source = torch.empty(num_bytes // 4, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    return time_us([lambda: torch.bitwise_not(source, out=target)])


def time_us(works: list[Work]) -> float:
    """Median microseconds of one work, all of them captured in one graph that is replayed."""
    for work in works:
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    graph.replay()
    torch.cuda.synchronize()
    once = _replay_us(graph, 1)
    repeats = max(1, int(_LEAST_SECONDS * 1e6 / max(once, 1.0) / _REPLAYS))
    return statistics.median(_replay_us(graph, repeats) / repeats for _ in range(_REPLAYS)) / len(works)


def _replay_us(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def run(measurement: Measurement, ceilings: Ceilings) -> dict[str, Any]:
    """Check, time, and compare with the floor and the peer."""
    began = time.perf_counter()
    row: dict[str, Any] = {"group": measurement.group, "name": measurement.name, "shape": measurement.shape}
    try:
        if measurement.check is not None:
            error = measurement.check()
            row |= {"error": error, "error_ok": error <= measurement.tolerance}
        row["us"] = time_us(measurement.make())
        torch.cuda.empty_cache()
        if measurement.peer is not None:
            row["peer_us"] = time_us(measurement.peer())
            row["times_peer"] = row["peer_us"] / row["us"]
    except Exception as error:  # noqa: BLE001 - one measurement that fails must not cost the GPU time of the others
        row["failed"] = f"{type(error).__name__}: {error}"[:600]
        torch.cuda.empty_cache()
        return row
    torch.cuda.empty_cache()
    floor = ceilings.floor_us(measurement)
    row |= {
        "floor_us": floor,
        "share": floor / row["us"],
        "target": measurement.target,
        "bytes": measurement.bytes,
        "flop": measurement.flop,
        "spent_s": time.perf_counter() - began,
    }
    return row
