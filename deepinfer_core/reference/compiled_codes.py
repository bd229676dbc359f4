"""Rounding to quantised formats and cached records, one row at a time, in compiled code (spec model/03, attention/04).

Codes are exact powers of two away from float32 bit patterns: an e4m3 code moved to the top of the mantissa reads as
its value over 2^120, an e2m1 code as its value over 2^126, subnormals included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.dtypes import FORMATS
from deepinfer_core.ops.kv_cache.records import value_bytes
from deepinfer_core.reference.codes import scale_factors
from deepinfer_core.reference.compiled import bits, kernel, number
from deepinfer_core.reference.rounding import GRIDS

if TYPE_CHECKING:
    from deepinfer_core.reference.compiled import Array
    from deepinfer_core.tensor import Cache

_SIGN = np.int32(-(1 << 31))
_MAGNITUDE = np.int32(0x7FFFFFFF)
_EXPONENT = np.int32(0x7F800000)
_ONE_OVER = np.int32(254 << 23)
"""Minus the bits of a power of two, those of its inverse."""
_E4M3_MAX = np.float32(448.0)
_E2M1_MAX = np.float32(6.0)
_E4M3_FACTOR = np.float32(2.0**120)
_E2M1_FACTOR = np.float32(2.0**126)
_SIXTH = np.float32(1.0 / 6.0)
_SMALLEST_SIXFOLD = np.float32(6.0 * 2.0**-9)
_E4M3_SMALLEST, _E4M3_SHIFT = np.int32((127 - 6) << 23), np.int32((20 << 23) + (1 << 22))
_E2M1_SMALLEST, _E2M1_SHIFT = np.int32(127 << 23), np.int32((22 << 23) + (1 << 22))

GridNumbers = tuple[int, int, int, int, int]


@lru_cache(maxsize=8)
def grid_numbers(format: str) -> GridNumbers:
    """Group, bits of the floor, and the carries of a grid (``rounding.Grid``) as plain integers."""
    grid = GRIDS[format]
    floor = int(np.float32(grid.floor).view(np.int32))
    return grid.group, floor, grid.to_scale, grid.to_smallest, grid.to_shift


@dataclass(frozen=True, slots=True)
class Records:
    """Where the rows of a cache lie, for kernels.

    Attributes:
        bytes: Every byte from the first block to the last, one axis.
        layout: Bytes from block to block, rows per block, bytes of a row's values, bytes from row to row of values,
            first byte of scales, bytes from row to row of scales, channels, and 1 where values have 4 bits.
        group: Channels that share a scale.
        factors: Scale byte -> factor of the values.
        grid: Numbers of the grid with power-of-two scales, zeros where scales are e4m3.
    """

    bytes: Array
    layout: tuple[int, int, int, int, int, int, int, int]
    group: int
    factors: Array
    grid: GridNumbers

    @classmethod
    def of(cls, cache: Cache) -> Records:
        spec, values, storage = FORMATS[cache.format], value_bytes(cache), cache.storage
        record = spec.record_bytes(cache.width)
        stride, per_block = storage.stride(0), cache.rows_per_block
        used = (storage.shape[0] - 1) * stride + per_block * record
        steps = (values, per_block * values, record - values) if cache.sectioned else (record, values, record)
        layout = (stride, per_block, values, *steps, cache.width, int(spec.element == "e2m1"))
        grid = grid_numbers(cache.format) if cache.format in GRIDS else (0, 0, 0, 0, 0)
        flat = storage.as_strided((used,), (1,)).numpy()
        return cls(flat, layout, spec.group, _factors(cache.format), grid)


@lru_cache(maxsize=8)
def _factors(format: str) -> Array:
    return scale_factors(FORMATS[format]).numpy()


@kernel
def largest_bits(values: Any, floor: Any) -> Any:
    """Bits of the largest magnitude of float32 numbers, or of the floor; NaN is larger than all."""
    largest = np.int32(floor)
    for column in range(len(values)):
        largest = max(largest, np.int32(bits(values[column]) & _MAGNITUDE))
    return largest


@kernel
def on_grid(value: Any, smallest: Any, to_shift: Any) -> Any:
    """A float32 number rounded to a step that follows its exponent, or the smallest; its sign stays."""
    pattern = bits(value)
    exponent = max(np.int32(pattern & _EXPONENT), np.int32(smallest))
    shift = number(np.int32(exponent + to_shift))
    rounded = np.float32(np.float32(value + shift) - shift)
    return number(np.int32(np.int32(bits(rounded) & _MAGNITUDE) | np.int32(pattern & _SIGN)))


@kernel
def round_row(row: Any, grid: Any, result: Any) -> None:
    """The values that a float32 row has after quantising to a format with power-of-two scales."""
    group, floor, to_smallest, to_shift = grid[0], grid[1], np.int32(grid[3]), np.int32(grid[4])
    for start in range(0, len(row), group):
        values, rounded = row[start : start + group], result[start : start + group]
        smallest = np.int32(np.int32(largest_bits(values, floor) + to_smallest) & (_SIGN | _EXPONENT))
        for column in range(len(values)):
            rounded[column] = on_grid(values[column], smallest, to_shift)


@kernel
def read_record(data: Any, slot: Any, layout: Any, group: Any, factors: Any, result: Any) -> None:
    """Decode the row in a flat slot into float32 numbers."""
    stride, per_block, num_bytes, value_step, scale_start, scale_step, width, is_narrow = layout
    block = slot // per_block
    base, place = block * stride, slot - block * per_block
    first = base + place * value_step
    codes = data[first : first + num_bytes]
    if is_narrow:
        for pair in range(len(codes)):
            code = np.int32(codes[pair])
            low = ((code & np.int32(7)) << np.int32(22)) | ((code & np.int32(8)) << np.int32(28))
            high = ((code & np.int32(0x70)) << np.int32(18)) | ((code & np.int32(0x80)) << np.int32(24))
            result[2 * pair] = number(np.int32(low)) * _E2M1_FACTOR
            result[2 * pair + 1] = number(np.int32(high)) * _E2M1_FACTOR
    else:
        for column in range(len(codes)):
            code = np.int32(codes[column])
            pattern = ((code & np.int32(0x7F)) << np.int32(20)) | ((code & np.int32(0x80)) << np.int32(24))
            result[column] = number(np.int32(pattern)) * _E4M3_FACTOR
    first = base + scale_start + place * scale_step
    scales = data[first : first + width // group]
    for part in range(len(scales)):
        factor, values = factors[scales[part]], result[part * group : (part + 1) * group]
        for column in range(len(values)):
            values[column] *= factor


@kernel
def e4m3_code(value: Any) -> Any:
    """Nearest e4m3 code without its sign, ties to even, saturating; NaN gives 127."""
    magnitude = number(np.int32(bits(value) & _MAGNITUDE))
    rounded = min(on_grid(magnitude, _E4M3_SMALLEST, _E4M3_SHIFT), _E4M3_MAX)
    code = bits(np.float32(rounded / _E4M3_FACTOR)) >> np.int32(20)
    return np.int32(127) if math.isnan(value) else np.int32(code)


@kernel
def e2m1_code(value: Any) -> Any:
    """Nearest e2m1 code with its sign, ties to even, saturating; NaN gives 0."""
    pattern = bits(value)
    magnitude = number(np.int32(pattern & _MAGNITUDE))
    rounded = min(on_grid(magnitude, _E2M1_SMALLEST, _E2M1_SHIFT), _E2M1_MAX)
    code = bits(np.float32(rounded / _E2M1_FACTOR)) >> np.int32(22)
    sign = (pattern >> np.int32(28)) & np.int32(8)
    return sign if math.isnan(value) else np.int32(code) | sign


@kernel
def write_record(row: Any, slot: Any, layout: Any, group: Any, grid: Any, data: Any) -> None:
    """Quantise a float32 row and put it into a flat slot."""
    stride, per_block, _, value_step, scale_start, scale_step, width, is_narrow = layout
    block = slot // per_block
    base, place = block * stride, slot - block * per_block
    first, scales = base + place * value_step, base + scale_start + place * scale_step
    for part in range(width // group):
        start = part * group
        values = row[start : start + group]
        if grid[0]:
            largest = largest_bits(values, grid[1])
            scale = np.int32(np.int32(largest + np.int32(grid[2])) & (_SIGN | _EXPONENT))
            data[scales + part] = np.uint8(scale >> np.int32(23))
            inverse = number(np.int32(_ONE_OVER - scale))
        else:
            largest = largest_bits(values, np.int32(0))
            code = e4m3_code(np.float32(max(number(largest), _SMALLEST_SIXFOLD) * _SIXTH))
            data[scales + part] = np.uint8(code)
            inverse = np.float32(1.0) / (number(np.int32(code << np.int32(20))) * _E4M3_FACTOR)
        if is_narrow:
            codes = data[first + start // 2 : first + (start + group) // 2]
            for pair in range(len(codes)):
                low, high = values[2 * pair] * inverse, values[2 * pair + 1] * inverse
                codes[pair] = np.uint8(e2m1_code(low) | (e2m1_code(high) << np.int32(4)))
        else:
            codes = data[first + start : first + start + group]
            for column in range(len(codes)):
                sign = (bits(values[column]) >> np.int32(24)) & np.int32(0x80)
                codes[column] = np.uint8(e4m3_code(values[column] * inverse) | sign)
