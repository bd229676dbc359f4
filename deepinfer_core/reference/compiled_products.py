"""Products in compiled code: each weight is read once, and a row's bits do not depend on how many are beside it.

A row's products with a column are summed in blocks of ascending channels, with one multiply-add for each, and the
blocks one after the other. Where the library of this machine does so too the block is its own, found by trying, so
that both give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.ops.quantize.rounding import dense
from deepinfer_core.reference.compiled import array, empty, tensor
from deepinfer_core.reference.compiled_panels import Panels, can_keep_codes
from deepinfer_core.reference.limits import weight_copies
from deepinfer_core.reference.products import fewest_rows, rows_of
from deepinfer_core.reference.rounding import cast
from deepinfer_core.tensor import Packed, QuantTensor

if TYPE_CHECKING:
    from deepinfer_core.reference.compiled import Array

_LARGE_NUMBERS = 1 << 20
"""Numbers of a map that is read from memory rather than from a cache, so that bf16 copies are read faster."""
_NARROW = 16
"""Outputs below which the library sums in orders of its own."""
_TRIED_OUTPUTS = 256
_TRIED_BLOCKS = (192, 128, 256, 384, 320, 336, 448, 512)


@dataclass(frozen=True, slots=True)
class Maps:
    """Maps of the same size that are multiplied together, each with the rows that belong to it.

    Attributes:
        stacks: The maps in order, those of one kind beside each other in one stack.
        outputs: Of one map.
        block: Channels that are summed before they are added to the others.
    """

    stacks: tuple[Panels, ...]
    outputs: int
    block: int

    @classmethod
    def of(cls, maps: Sequence[Tensor | QuantTensor], copies: str = "auto") -> Maps:
        """Maps for weights ``[outputs, channels]``.

        Args:
            maps: The weights as they are in the checkpoint.
            copies: ``packed`` keeps the checkpoint's own codes; anything else makes dense numbers of them.
        """
        outputs, channels = maps[0].shape
        kept = [weight if copies == "packed" and _keeps_codes(weight) else _numbers(weight, copies) for weight in maps]
        stacks = tuple(_stack(list(group)) for _, group in groupby(kept, _kind))
        return cls(stacks, outputs, summation_block(channels, outputs) or _TRIED_BLOCKS[0])

    @property
    def count(self) -> int:
        """Maps."""
        return sum(stack.count for stack in self.stacks)

    @property
    def nbytes(self) -> int:
        """Memory of the numbers."""
        return sum(stack.nbytes for stack in self.stacks)

    def __call__(self, rows: Tensor, order: Order) -> Tensor:
        """Float32 products ``[results, outputs]`` of float32 rows, in the order given."""
        result, numbers, first = empty((len(order.sources), self.outputs)), array(rows), 0
        for stack in self.stacks:
            last = first + stack.count
            stack.multiply(numbers, order.sources, order.stops[first : last + 1], self.block, result)
            first = last
        return tensor(result)


def _keeps_codes(weight: Tensor | QuantTensor) -> bool:
    return isinstance(weight, QuantTensor) and can_keep_codes(weight)


def _numbers(weight: Tensor | QuantTensor, copies: str) -> Tensor:
    """The numbers of a weight: bf16 where that loses nothing and saves what is scarce, else float32."""
    wide = dense(weight, torch.float32)
    if copies == "packed" or wide.numel() > _LARGE_NUMBERS:
        narrow = wide.bfloat16()
        return narrow if torch.equal(narrow.float(), wide) else wide
    return wide


def _kind(weight: Tensor | QuantTensor) -> str:
    return weight.format if isinstance(weight, QuantTensor) else str(weight.dtype)


def _stack(maps: list[Any]) -> Panels:
    """Maps of the same kind."""
    return Panels.of_codes(maps) if isinstance(maps[0], QuantTensor) else Panels.of_numbers(maps)


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


@lru_cache(maxsize=256)
def summation_block(channels: int, outputs: int) -> int:
    """The block with which the kernel gives the library's bits, or 0 when none of those tried does."""
    if outputs < _NARROW:
        return 0
    generator = torch.Generator().manual_seed(0)
    count = max(fewest_rows(torch.float32), 1) + 1
    width = outputs if outputs <= _TRIED_OUTPUTS else _TRIED_OUTPUTS + outputs % 64
    rows = torch.randn(count, channels, generator=generator)
    weight = torch.randn(width, channels, generator=generator)
    expected = torch.mm(rows, weight.t().contiguous())
    panels = Panels.of_numbers([weight])
    for block in (channels, *_TRIED_BLOCKS):
        if torch.equal(Maps((panels,), width, block)(rows, one_map(count)), expected):
            return block
    return 0


def pack_maps(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """Every weight as the maps of one product, or of one product for each of ``groups``."""
    groups, copies = site.attributes.get("groups", 1), weight_copies(site)
    return {
        name: Packed(Maps.of(group_maps(weight, groups), copies), tuple(weight.shape))
        for name, weight in weights.items()
    }


def group_maps(weight: Tensor | QuantTensor, groups: int) -> list[Tensor | QuantTensor]:
    """The maps of every group of a weight ``[groups * rank, channels]``; dense where a scale spans two of them."""
    rank = weight.shape[0] // groups
    if groups == 1:
        return [weight]
    if isinstance(weight, QuantTensor) and rank % weight.spec.rows == 0:
        scales = weight.scale.split(rank // weight.spec.rows)
        parts = zip(weight.data.split(rank), scales, strict=True)
        return [QuantTensor(data, scale, weight.format, weight.storage) for data, scale in parts]
    return list(dense(weight, torch.float32).split(rank))


def run_linear(x: Tensor | QuantTensor, weight: Packed, *, out: str) -> Tensor:
    """``linear.linear`` with a packed weight."""
    rows = rows_of(x, torch.float32)
    return cast(weight.payload(rows, one_map(rows.shape[0])), TORCH_DTYPES[out])


def run_grouped_linear(x: Tensor | QuantTensor, weight: Packed, *, groups: int, out: str) -> Tensor:
    """``linear.grouped_linear`` with weights from :func:`pack_maps`."""
    return cast(grouped_product(rows_of(x, torch.float32), weight.payload, groups), TORCH_DTYPES[out])


def grouped_product(rows: Tensor, maps: Maps, groups: int) -> Tensor:
    """``[T, groups * rank]``: each group of channels times the map of its group."""
    count = rows.shape[0]
    parts = rows.reshape(count * groups, rows.shape[1] // groups)
    results = maps(parts, map_of_column(count, groups)).view(groups, count, maps.outputs)
    return results.transpose(0, 1).reshape(count, groups * maps.outputs)


def run_vocabulary_logits(x: Tensor, head: Packed) -> Tensor:
    """``embedding.vocabulary_logits`` with a packed head."""
    rows = x.float()
    return head.payload(rows, one_map(rows.shape[0]))
