"""Products of few rows in compiled code: each weight is read once, in the order of summation of the library.

Libraries are slow where there are few rows: the work is reading the weight. A library adds up the products of a row
and a column in blocks of ascending channels, with one multiply-add for each; a kernel that does the same gives the
same bits, so that a row does not depend on how many are beside it. The length of the blocks is found by trying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import dense
from deepinfer_core.reference.compiled import array, kernel, over_rows, tensor, widened
from deepinfer_core.reference.linear import grouped_product as library_grouped_product
from deepinfer_core.reference.products import fewest_rows, product, rows_of
from deepinfer_core.reference.rounding import cast
from deepinfer_core.tensor import Packed, QuantTensor

if TYPE_CHECKING:
    from deepinfer_core.reference.compiled import Array

_FEW_ROWS = 6
"""Rows from which on the library multiplies faster by a map that stays in the processor's cache."""
_FEW_ROWS_OF_EACH = 12
"""The same for many maps, each with rows of its own, which the library does one after the other."""
_FEW_ROWS_OF_LARGE = 64
"""The same for maps that are read from memory, which the library copies before it multiplies."""
_LARGE_BYTES = 1 << 22
_COLUMNS_AT_ONCE = 1024
"""Outputs of a bf16 map that are made float32 together for the library."""
_NARROW = 16
"""Outputs below which the library sums in orders of its own."""
_SHARE = 64
"""Outputs in the smallest share of a thread."""
_TRIED_BLOCKS = (192, 128, 256, 384, 320, 336, 448, 512)


@dataclass(frozen=True, slots=True)
class Maps:
    """Maps that are multiplied together, each with the rows that belong to it.

    Attributes:
        dense: ``[maps, channels, outputs]``, contiguous; bf16 in place of float32 where the maps are large and nothing
            is lost, because reading them takes most of the time.
        weights: The same numbers for kernels.
        block: Channels that are summed before they are added to the others; 0 where only the library will do.
        few: Results below which the kernel is faster than the library.
    """

    dense: Tensor
    weights: Array
    block: int
    few: int

    @classmethod
    def of(cls, dense: Tensor) -> Maps:
        """Maps for float32 numbers ``[maps, channels, outputs]``."""
        maps, channels, outputs = dense.shape
        is_large = dense.nbytes > maps * _LARGE_BYTES
        if is_large and torch.equal(narrow := dense.bfloat16(), dense):
            dense = narrow
        block = summation_block(channels, outputs)
        few = _FEW_ROWS_OF_LARGE if is_large else _FEW_ROWS if maps == 1 else _FEW_ROWS_OF_EACH
        return cls(dense.contiguous(), array(dense), block, maps * few if block else 0)

    def __call__(self, rows: Tensor, order: Order) -> Tensor:
        """Float32 products ``[results, outputs]`` of float32 rows, in the order given."""
        count = order.sources.shape[0]
        if 0 < count < self.few:
            return tensor(multiply(array(rows), self.weights, self.block, order))
        if self.dense.shape[0] == 1:
            return _library_product(rows, self.dense[0])
        sorted_rows = rows.index_select(0, torch.from_numpy(order.sources))
        result = torch.empty(count, self.dense.shape[2])
        for weight, (start, stop) in zip(self.dense, pairwise(order.stops.tolist()), strict=True):
            if start < stop:
                result[start:stop] = _library_product(sorted_rows[start:stop], weight)
        return result


def _library_product(rows: Tensor, weight: Tensor) -> Tensor:
    if weight.dtype == torch.float32:
        return product(rows, weight)
    parts = [product(rows, part.float()) for part in weight.split(_COLUMNS_AT_ONCE, 1)]
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def multiply(rows: Array, weights: Array, block: int, order: Order) -> Array:
    """Products by the kernel; see :class:`Maps`."""
    maps, channels, outputs = weights.shape
    count = len(order.sources)
    result = np.empty((count, outputs), np.float32)
    chunk = 2048 if count <= 2 * maps else 256
    arguments = (rows, order.sources, order.stops, weights, block, chunk, result)
    over_rows(_multiply, -(-outputs // _SHARE), channels * count * _SHARE // 8, *arguments)
    return result


@dataclass(frozen=True, slots=True)
class Order:
    """Rows in the order of the maps that they go through.

    Attributes:
        sources: Row of each result, int32; a map of its own for each row gives as many results as there are rows.
        stops: A zero, then where the results of each map end: ``[maps + 1]`` int32.
    """

    sources: Array
    stops: Array


@lru_cache(maxsize=256)
def one_map(num_rows: int) -> Order:
    """Every row through the same map."""
    return Order(np.arange(num_rows, dtype=np.int32), np.array([0, num_rows], np.int32))


@lru_cache(maxsize=256)
def map_of_column(num_rows: int, num_maps: int) -> Order:
    """Rows ``[rows, maps]``, each column through a map of its own: results ``[maps, rows]``."""
    sources = np.arange(num_rows * num_maps, dtype=np.int32).reshape(num_rows, num_maps).T.flatten()
    return Order(sources, np.arange(num_maps + 1, dtype=np.int32) * np.int32(num_rows))


@kernel
def _add_block(row: Any, weight: Any, start: Any, stop: Any, begin: Any, end: Any, sums: Any) -> None:
    """Sums of the products of one block of channels for a range of outputs, one channel after the other."""
    width = end - begin
    for output in range(width):
        sums[output] = np.float32(0.0)
    channel = start
    while channel + 4 <= stop:
        a, b, c, d = row[channel], row[channel + 1], row[channel + 2], row[channel + 3]
        first, second = weight[channel, begin:end], weight[channel + 1, begin:end]
        third, fourth = weight[channel + 2, begin:end], weight[channel + 3, begin:end]
        for output in range(width):
            total = sums[output] + a * widened(first[output])
            total = total + b * widened(second[output])
            total = total + c * widened(third[output])
            sums[output] = total + d * widened(fourth[output])
        channel += 4
    while channel < stop:
        a, first = row[channel], weight[channel, begin:end]
        for output in range(width):
            sums[output] = sums[output] + a * widened(first[output])
        channel += 1


@kernel
def _multiply(
    rows: Any, sources: Any, stops: Any, weights: Any, block: Any, chunk: Any, result: Any, first: Any, last: Any
) -> None:
    """Shares ``first .. last - 1`` of the outputs of every map, a chunk of outputs at a time."""
    channels, outputs = weights.shape[1], weights.shape[2]
    sums = np.empty(chunk, np.float32)
    final = min(last * _SHARE, outputs)
    for begin in range(first * _SHARE, final, chunk):
        end = min(begin + chunk, final)
        for number in range(len(weights)):
            for start in range(0, channels if stops[number] < stops[number + 1] else 0, block):
                stop = min(start + block, channels)
                for index in range(stops[number], stops[number + 1]):
                    _add_block(rows[sources[index]], weights[number], start, stop, begin, end, sums)
                    made = result[index, begin:end]
                    for output in range(len(made)):
                        made[output] = (made[output] if start else np.float32(0.0)) + sums[output]


@lru_cache(maxsize=256)
def summation_block(channels: int, outputs: int) -> int:
    """The block with which the kernel gives the library's bits, or 0 when none of those tried does."""
    if outputs < _NARROW:
        return 0
    generator = torch.Generator().manual_seed(0)
    count = max(fewest_rows(torch.float32), 1)
    width = outputs if outputs <= 256 else 256 + outputs % _SHARE
    rows = torch.randn(count + 1, channels, generator=generator)
    weight = torch.randn(width, channels, generator=generator).t().contiguous()
    expected = torch.mm(rows, weight)
    order, maps = one_map(count + 1), weight.unsqueeze(0).numpy()
    for block in (channels, *_TRIED_BLOCKS):
        if np.array_equal(multiply(rows.numpy(), maps, block, order), expected.numpy()):
            return block
    return 0


def dense_maps(weight: Tensor | QuantTensor) -> Tensor:
    """A weight ``[..., out, in]`` as contiguous float32 ``[..., in, out]``, exact."""
    return dense(weight, torch.float32).transpose(-1, -2).contiguous()


def pack_maps(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Every weight as the maps of one product, or of one product for each of ``groups``."""
    groups = site.attributes.get("groups", 1)
    return {
        name: Packed(Maps.of(group_maps(dense_maps(weight), groups)), tuple(weight.shape))
        for name, weight in weights.items()
    }


def group_maps(weight: Tensor, groups: int) -> Tensor:
    """A map ``[in, groups * rank]`` as ``[groups, in, rank]``."""
    return weight.unflatten(1, (groups, -1)).transpose(0, 1).contiguous()


def run_linear(x: Tensor | QuantTensor, weight: Packed, *, out: str) -> Tensor:
    """``linear.linear`` with a packed weight."""
    rows = rows_of(x, torch.float32)
    return cast(weight.payload(rows, one_map(rows.shape[0])), TORCH_DTYPES[out])


def run_grouped_linear(x: Tensor | QuantTensor, weight: Packed, *, groups: int, out: str) -> Tensor:
    """``linear.grouped_linear`` with weights from :func:`pack_maps`."""
    return cast(grouped_product(rows_of(x, torch.float32), weight.payload, groups), TORCH_DTYPES[out])


def grouped_product(rows: Tensor, maps: Maps, groups: int) -> Tensor:
    """``[T, groups * rank]``: each group of channels times the map of its group."""
    count, (width, rank) = rows.shape[0], maps.dense.shape[1:]
    if 0 < count * groups < maps.few or maps.dense.dtype != torch.float32:
        results = maps(rows.reshape(count * groups, width), map_of_column(count, groups)).view(groups, count, rank)
    else:
        return library_grouped_product(rows, maps.dense)
    return results.transpose(0, 1).reshape(count, groups * rank)


def run_vocabulary_logits(x: Tensor, head: Packed) -> Tensor:
    """``embedding.vocabulary_logits`` with a packed head."""
    rows = x.float()
    return head.payload(rows, one_map(rows.shape[0]))
