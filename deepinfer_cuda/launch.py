"""How a kernel is started: on the device, in Triton's interpreter, or only compiled for a target that is not here."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a kernel, as its adapter asked for it.

    Attributes:
        kernel: What ``@triton.jit`` made.
        grid: Programs along each axis.
        arguments: Positional arguments in the order of the kernel's parameters.
        constants: Compile-time parameters by name.
        num_warps: Warps of a program.
        num_stages: Depth of the software pipeline.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int


_RECORD: ContextVar[list[Launch] | None] = ContextVar("launches that are recorded instead of run", default=None)


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, num_stages: int = 3, **constants: Any
) -> None:
    """Start a kernel on the current stream; an empty grid starts nothing.

    Args:
        kernel: A ``@triton.jit`` function.
        grid: Programs along each axis.
        *arguments: Tensors and numbers, in the order of the kernel's parameters.
        num_warps: Warps of a program.
        num_stages: Depth of the software pipeline.
        **constants: Compile-time parameters by name.
    """
    if 0 in grid:
        return
    record = _RECORD.get()
    if record is not None:
        record.append(Launch(kernel, grid, arguments, constants, num_warps, num_stages))
        return
    kernel[grid](*arguments, num_warps=num_warps, num_stages=num_stages, **constants)


@contextmanager
def recorded() -> Generator[list[Launch]]:
    """A scope in which launches are listed and nothing runs; adapters may then be called with ``meta`` tensors."""
    launches: list[Launch] = []
    token = _RECORD.set(launches)
    try:
        yield launches
    finally:
        _RECORD.reset(token)


@contextmanager
def nothing_started() -> Generator[None]:
    """As :func:`recorded`, but launches are forgotten, and with them the tensors that they hold."""
    token = _RECORD.set(_Forgotten())
    try:
        yield
    finally:
        _RECORD.reset(token)


class _Forgotten(list[Launch]):
    """Stays empty."""

    def append(self, launch: Launch, /) -> None:
        """Keep nothing."""


def rows_of(tensor: Tensor) -> tuple[Tensor, int]:
    """A tensor whose last axis is dense, and the distance of its rows in elements (0 for a single row)."""
    dense = tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
    return dense, dense.stride(0) if dense.dim() > 1 else 0
