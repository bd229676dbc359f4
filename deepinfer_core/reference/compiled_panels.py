"""Weights as kernels of few rows read them: panels of a few outputs, channel after channel, one stream of bytes.

A panel holds bf16 numbers, or the codes of the checkpoint and their scales: a half or a quarter of the memory, the
same numbers, and the same bits in every product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_core.reference.compiled import HAS_NUMBA, array, kernel, over_rows
from deepinfer_core.reference.compiled_vectors import (
    E2M1_BIAS,
    E4M3_BIAS,
    GROUP,
    PANEL,
    add_dense_products,
    add_products,
    codes_per_item,
    read_numbers,
)
from deepinfer_core.tensor import QuantTensor

if TYPE_CHECKING:
    from deepinfer_core.reference.compiled import Array

_NO_SCALES = np.empty(0, np.uint8)
_LARGEST_EXPONENT = 254
_ROWS_OF_A_PART = 512
"""Results of a map that are worked on together, so that their rows stay in a cache."""


@dataclass(frozen=True, slots=True)
class Panels:
    """Maps of the same size and kind in panels of ``PANEL`` outputs; what lacks in the last one is zeros.

    Attributes:
        items: ``[maps, panels, channels / codes in an item, PANEL]``; see ``compiled_vectors.add_products``.
        scales: ``[maps, panels, channels / GROUP, PANEL]`` uint8, nothing for bf16 numbers.
        outputs: Of one map.
    """

    items: Array
    scales: Array
    outputs: int

    @classmethod
    def of_numbers(cls, maps: Sequence[Tensor]) -> Panels:
        """Panels of bf16 or float32 maps ``[outputs, channels]``."""
        return cls(np.stack([array(_in_panels(numbers)) for numbers in maps]), _NO_SCALES, maps[0].shape[0])

    @classmethod
    def of_codes(cls, maps: Sequence[QuantTensor]) -> Panels:
        """Panels of quantised maps ``[outputs, channels]`` of the same format, for which :func:`can_keep_codes`."""
        items, scales = [], []
        for weight in maps:
            outputs = weight.shape[0]
            codes = _in_panels(weight.data.view(torch.int8))
            items.append((codes if weight.spec.element == "e2m1" else codes.view(torch.uint8)).numpy())
            scales.append(_in_panels(weight.scale.repeat_interleave(weight.spec.rows, 0)[:outputs]).numpy())
        return cls(np.stack(items), np.stack(scales), maps[0].shape[0])

    @property
    def count(self) -> int:
        """Maps."""
        return len(self.items)

    @property
    def channels(self) -> int:
        """Of one map."""
        return int(self.items.shape[2]) * codes_per_item(self.items)

    @property
    def nbytes(self) -> int:
        """Memory of the numbers."""
        return int(self.items.nbytes + self.scales.nbytes)

    def multiply(self, rows: Array, sources: Array, stops: Array, block: int, result: Array) -> None:
        """Products ``[results, outputs]`` of the results that the stops give to each map; others stay.

        Args:
            rows: Float32 ``[rows, channels]``.
            sources: Row of each result.
            stops: ``[maps + 1]``: where the results of each map begin and end.
            block: Channels that are summed before they are added to the others.
            result: Float32, changed.
        """
        count, panels = int(stops[-1] - stops[0]), self.items.shape[1]
        parts = max(count // (self.count * _ROWS_OF_A_PART), 1)
        work = count * self.channels * PANEL // (8 * parts)
        arguments = (rows, sources, stops, self.items, self.scales, block, parts, result)
        over_rows(_multiply, panels * parts if count else 0, work, *arguments)


def can_keep_codes(weight: QuantTensor) -> bool:
    """Whether kernels read the codes of a map exactly: whole groups, normal factors, no NaN."""
    spec, (outputs, channels) = weight.spec, weight.shape
    bias = E2M1_BIAS if spec.element == "e2m1" else E4M3_BIAS
    is_whole = spec.group == GROUP and spec.scale == "ue8m0" and channels % GROUP == 0 and outputs >= PANEL
    if weight.storage != "canonical" or not is_whole or int(weight.scale.max()) + bias > _LARGEST_EXPONENT:
        return False
    return spec.element == "e2m1" or not bool(weight.data.float().isnan().any())


def _in_panels(rows: Tensor) -> Tensor:
    """``[outputs, n]`` as ``[panels, n, PANEL]``."""
    missing = -rows.shape[0] % PANEL
    return (pad(rows, (0, 0, 0, missing)) if missing else rows).unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()


@kernel
def _multiply(
    rows: Any,
    sources: Any,
    stops: Any,
    items: Any,
    scales: Any,
    block: Any,
    parts: Any,
    result: Any,
    first: Any,
    last: Any,
) -> None:
    """Shares ``first .. last - 1`` of every map: its panels for one part of the results after the other."""
    panels = items.shape[1]
    channels, outputs = items.shape[2] * codes_per_item(items), result.shape[1]
    every, factors = items.reshape(-1), scales.reshape(-1)
    sums, scratch = np.empty(2 * PANEL, np.float32), np.empty(block * PANEL, np.float32)
    for number in range(items.shape[0]):
        count = stops[number + 1] - stops[number]
        for share in range(first, last if count else first):
            part, panel = share // panels, share % panels
            begin, end = stops[number] + count * part // parts, stops[number] + count * (part + 1) // parts
            place, edge = (number * panels + panel) * channels, min((panel + 1) * PANEL, outputs)
            for start in range(0, channels, block):
                stop = min(start + block, channels)
                if end - begin == 1:
                    sums[:PANEL] = np.float32(0.0)
                    _add_channels(sums, rows[sources[begin]], start, stop, every, factors, block, place)
                    _keep(sums, 0, result[begin, panel * PANEL : edge], start)
                elif end > begin:
                    numbers, at = dense_numbers(every, factors, place, start, stop, scratch)
                    _add_pairs(rows, sources, begin, end, start, stop, numbers, at, sums, panel, edge, result)


def dense_numbers(every: Any, factors: Any, place: Any, start: Any, stop: Any, scratch: Any) -> Any:
    """Float32 numbers of the channels ``start .. stop - 1`` of a panel, and where in them the first one is."""
    if every.dtype == np.float32:
        return every, (place + start) * PANEL
    _unpack_channels(every, factors, place, start, stop, scratch)
    return scratch, 0


@kernel
def _add_channels(sums: Any, row: Any, start: Any, stop: Any, every: Any, factors: Any, block: Any, place: Any) -> None:
    """Channels of one row, those of a group at a time."""
    per_item, step = codes_per_item(every), GROUP if len(factors) else block
    channel = start
    while channel < stop:
        after = min((channel // step + 1) * step, stop)
        item, scale = (place + channel) // per_item * PANEL, (place + channel) // GROUP * PANEL
        add_products(sums, row, channel, every, item, factors, scale, after - channel)
        channel = after


@kernel
def _add_pairs(
    rows: Any,
    sources: Any,
    begin: Any,
    end: Any,
    start: Any,
    stop: Any,
    numbers: Any,
    place: Any,
    sums: Any,
    panel: Any,
    edge: Any,
    result: Any,
) -> None:
    """Channels ``start .. stop - 1`` of the results ``begin .. end - 1``, two of them at a time."""
    flat, width = rows.reshape(-1), rows.shape[1]
    for index in range(begin, end, 2):
        other = min(index + 1, end - 1)
        sums[:] = np.float32(0.0)
        one, two = sources[index] * width + start, sources[other] * width + start
        add_dense_products(sums, flat, one, two, numbers, place, PANEL, stop - start)
        _keep(sums, 0, result[index, panel * PANEL : edge], start)
        if other > index:
            _keep(sums, PANEL, result[other, panel * PANEL : edge], start)


@kernel
def _keep(sums: Any, first: Any, made: Any, start: Any) -> None:
    """Add the sums of a block to those of the blocks before."""
    for output in range(len(made)):
        made[output] = (made[output] if start else np.float32(0.0)) + sums[first + output]


@kernel
def _unpack_channels(every: Any, factors: Any, place: Any, start: Any, stop: Any, result: Any) -> None:
    """Dense numbers of the channels ``start .. stop - 1`` of a panel, one channel after the other."""
    per_item, step = codes_per_item(every), GROUP if len(factors) else stop
    channel = start
    while channel < stop:
        after = min((channel // step + 1) * step, stop)
        item, scale = (place + channel) // per_item * PANEL, (place + channel) // GROUP * PANEL
        read_numbers(result, (channel - start) * PANEL, every, item, factors, scale, after - channel)
        channel = after


if HAS_NUMBA:
    from numba import types
    from numba.extending import overload

    @overload(dense_numbers, inline="always")
    def _compile_dense_numbers(every: Any, factors: Any, place: Any, start: Any, stop: Any, scratch: Any) -> Any:
        def as_they_are(every: Any, factors: Any, place: Any, start: Any, stop: Any, scratch: Any) -> Any:
            return every, (place + start) * PANEL

        def unpacked(every: Any, factors: Any, place: Any, start: Any, stop: Any, scratch: Any) -> Any:
            _unpack_channels(every, factors, place, start, stop, scratch)
            return scratch, 0

        return as_they_are if every.dtype == types.float32 else unpacked
