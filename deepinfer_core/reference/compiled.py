"""What compiled kernels of the CPU share: loops over rows that numba turns into machine code.

A kernel takes NumPy arrays and a range of rows, works on each row as if it were alone, and allocates only scratch
space. bf16 numbers travel as int16 bit patterns, which NumPy has a type for. Without numba the kernels are plain
functions that nothing binds: every implementation made of them states the limit ``needs_package("numba")``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.config.env import set_missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

HAS_NUMBA = find_spec("numba") is not None

_WORK_OF_A_THREAD = 1 << 17
"""Steps of an inner loop below which starting a thread costs more than it saves."""
_SHARES_OF_A_THREAD = 4
_BF16_NAN = 0x7FC0
_ARRAY_TYPES = {torch.bfloat16: np.int16, torch.float32: np.float32, torch.int32: np.int32}


def _bits(value: Any) -> Any:
    """The bits of a float32 number as int32."""
    return np.float32(value).view(np.int32)


def _number(bits: Any) -> Any:
    """The float32 number that has these bits (int32)."""
    return np.int32(bits).view(np.float32)


def _widened(value: Any) -> Any:
    """An element of an activation array, float32 or the bits of bf16, as float32."""
    return (
        np.int32(int(value) << 16).view(np.float32) if getattr(value, "dtype", None) == np.int16 else np.float32(value)
    )


def _narrowed(value: Any, array: Array) -> Any:
    """A float32 number as an element of ``array``: itself, or the bits of the nearest bf16."""
    if array.dtype != np.int16:
        return np.float32(value)
    pattern = int(np.float32(value).view(np.uint32))
    rounded = (pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16 & 0xFFFF
    return np.uint16(_BF16_NAN if math.isnan(value) else rounded).view(np.int16)


def cache_folder() -> Path:
    """Where machine code is kept: a folder for these very sources, because numba looks at one file's age only."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return Path("~/.cache/deepinfer/kernels").expanduser() / key


if HAS_NUMBA:
    set_missing({"NUMBA_CACHE_DIR": str(cache_folder())})

    from numba import njit, types
    from numba.extending import intrinsic, overload

    def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile at the first call with each set of types, and keep the machine code on disk."""
        return njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)

    def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for sums whose order the compiler may choose; it chooses once, at compile time."""
        flags = {"contract", "reassoc", "nsz"}
        return njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function)

    def exact_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for results that every device must give to the bit: each operation is rounded by itself."""
        return njit(cache=True, nogil=True, error_model="numpy")(function)

    @intrinsic
    def _bitcast_to_int(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(types.int32))

        return types.int32(types.float32), generate

    @intrinsic
    def _bitcast_to_float(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(types.float32))

        return types.float32(types.int32), generate

    to_int: Any = _bitcast_to_int
    to_float: Any = _bitcast_to_float

    @overload(_bits, inline="always")
    def _compile_bits(value: Any) -> Any:
        def generate(value: Any) -> Any:
            return to_int(np.float32(value))

        return generate

    @overload(_number, inline="always")
    def _compile_number(bits: Any) -> Any:
        def generate(bits: Any) -> Any:
            return to_float(np.int32(bits))

        return generate

    @overload(_widened, inline="always")
    def _compile_widened(value: Any) -> Any:
        def from_bf16(value: Any) -> Any:
            return to_float(np.int32(np.int32(value) << np.int32(16)))

        def unchanged(value: Any) -> Any:
            return np.float32(value)

        return from_bf16 if value == types.int16 else unchanged

    @overload(_narrowed)
    def _compile_narrowed(value: Any, array: Any) -> Any:
        def to_bf16(value: Any, array: Any) -> Any:
            pattern = np.uint32(to_int(np.float32(value)))
            rounded = (pattern + np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            return np.int16(np.uint32(_BF16_NAN) if math.isnan(value) else np.uint32(rounded))

        def unchanged(value: Any, array: Any) -> Any:
            return np.float32(value)

        return to_bf16 if array.dtype == types.int16 else unchanged

else:

    def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        """Leave the function as it is."""
        return function

    reduction = exact_kernel = kernel

bits, number, widened, narrowed = _bits, _number, _widened, _narrowed


def array(rows: Tensor) -> Array:
    """The numbers of a dense tensor as they lie in memory, of any other in a copy; bf16 as int16 bit patterns."""
    rows = rows.contiguous()
    return (rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows).numpy()


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Array:
    """Room for a kernel's result that :func:`tensor` turns into a tensor of this type."""
    return np.empty(shape, _ARRAY_TYPES[dtype])


def tensor(result: Array) -> Tensor:
    """The tensor over the numbers of an array; int16 bit patterns are bf16 again."""
    made = torch.from_numpy(result)
    return made.view(torch.bfloat16) if made.dtype == torch.int16 else made


def over_rows(run: Callable[..., None], num_rows: int, work: int, *arguments: Any) -> None:
    """Call a kernel for all rows, in as many threads as torch uses where that pays.

    Args:
        run: Takes the arguments, then the first row and one past the last.
        num_rows: Rows in all.
        work: Steps of inner loops that one row takes.
        arguments: Arrays and numbers for the kernel.
    """
    shares = min(num_rows, num_rows * work // _WORK_OF_A_THREAD)
    threads = min(torch.get_num_threads(), shares)
    if threads <= 1:
        if num_rows:
            run(*arguments, 0, num_rows)
        return
    count = min(shares, threads * _SHARES_OF_A_THREAD)
    left = iter([(num_rows * part // count, num_rows * (part + 1) // count) for part in range(count)])
    others = [_threads(threads - 1).submit(_take_shares, run, arguments, left) for _ in range(1, threads)]
    _take_shares(run, arguments, left)
    for other in others:
        other.result()


def _take_shares(run: Callable[..., None], arguments: tuple[Any, ...], left: Iterator[tuple[int, int]]) -> None:
    """Work on one share of the rows after the other while some are left: a thread that is held up takes fewer."""
    for first, last in left:
        run(*arguments, first, last)


@lru_cache(maxsize=4)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="deepinfer-cpu")
