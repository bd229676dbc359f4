"""Linear maps on the CPU: weights are dequantised once, at load, and multiplied as dense matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site
from deepinfer_core.reference.chunks import with_copies
from deepinfer_core.reference.products import fewest_rows, pack_dense, product, rows_of
from deepinfer_core.reference.rounding import cast
from deepinfer_core.tensor import QuantTensor


def run_linear(x: Tensor | QuantTensor, weight: Tensor, *, out: str) -> Tensor:
    """``linear.linear`` with a packed weight."""
    return cast(product(rows_of(x, weight.dtype), weight), TORCH_DTYPES[out])


def pack_groups(weights: Mapping[str, Any], site: Site) -> Mapping[str, Any]:
    """A dense copy ``[groups, in, out]`` of the map of every group."""
    return {name: group_maps(copy, site.attributes["groups"]) for name, copy in pack_dense(weights, site).items()}


def group_maps(weight: Tensor, groups: int) -> Tensor:
    """A packed weight ``[in, groups * rank]`` as ``[groups, in, rank]``."""
    return weight.unflatten(1, (groups, -1)).transpose(0, 1)


def run_grouped_linear(x: Tensor | QuantTensor, weight: Tensor, *, groups: int, out: str) -> Tensor:
    """``linear.grouped_linear`` with weights from :func:`pack_groups`."""
    del groups
    return cast(grouped_product(rows_of(x, weight.dtype), weight), TORCH_DTYPES[out])


def grouped_product(rows: Tensor, maps: Tensor) -> Tensor:
    """``[T, groups * rank]``: each group of channels times the map of its group ``[groups, in, rank]``."""
    groups, width, rank = maps.shape
    count, fewest = rows.shape[0], fewest_rows(rows.dtype)
    if 0 < count < fewest:
        return grouped_product(with_copies(rows, fewest), maps)[:count]
    results = torch.bmm(rows.view(count, groups, width).transpose(0, 1), maps)
    return results.transpose(0, 1).reshape(count, groups * rank)


def run_vocabulary_logits(x: Tensor, head: Tensor) -> Tensor:
    """``embedding.vocabulary_logits`` with a packed head."""
    return product(cast(x, head.dtype), head)
