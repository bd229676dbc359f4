"""Selection with the stable tie rule on the CPU: score and column become one integer, so that no two are equal."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.reference.rounding import integer

_LOWEST = {torch.int32: -(1 << 31), torch.int64: -(1 << 63)}
_COLUMN_BITS = {torch.int32: 16, torch.int64: 32}


def run_top_k(scores: Tensor, lengths: Tensor, *, k: int) -> Tensor:
    """``indexer.top_k``."""
    width = scores.shape[1]
    if width <= k:
        return first_columns(lengths, k)
    columns = torch.arange(width, dtype=torch.int32)
    keys = _ordered(scores, columns)
    keys.masked_fill_(columns >= lengths.unsqueeze(1), _LOWEST[keys.dtype])
    best = torch.topk(keys, k, -1, sorted=False).indices
    return ascending(best.masked_fill_(best >= lengths.unsqueeze(1), width), width)


def first_columns(lengths: Tensor, k: int) -> Tensor:
    """Columns ``0 .. length - 1`` of each row, then -1: ``[T, k]`` int32."""
    columns = torch.arange(k, dtype=torch.int32)
    return torch.where(columns < lengths.unsqueeze(1), columns, integer(-1))


def ascending(columns: Tensor, none: int) -> Tensor:
    """Columns in ascending order, ``none`` (larger than all others) replaced by -1, as int32."""
    ordered = columns.sort(-1).values.int()
    return ordered.masked_fill_(ordered == none, -1)


def _ordered(scores: Tensor, columns: Tensor) -> Tensor:
    """Integers that order like (score, smaller column first); +0 and -0 are equal.

    bf16 scores and columns below 2^16 fit into 32 bits; everything else takes 64.
    """
    is_narrow = scores.dtype == torch.bfloat16 and len(columns) <= 1 << 16
    dtype = torch.int32 if is_narrow else torch.int64
    values = (scores if is_narrow else scores.float()) + 0.0
    bits = values.view(torch.int16 if is_narrow else torch.int32)
    flipped = bits ^ ((bits >> (15 if is_narrow else 31)) & (0x7FFF if is_narrow else 0x7FFFFFFF))
    shift = _COLUMN_BITS[dtype]
    return (flipped.to(dtype) << shift).add_((1 << shift) - 1 - columns.to(dtype))


def run_block_maximum(scores: Tensor, lengths: Tensor, *, block_size: int) -> tuple[Tensor, Tensor]:
    """``indexer.block_maximum``."""
    columns = torch.arange(scores.shape[1], dtype=torch.int32)
    kept = scores.masked_fill(columns >= lengths.unsqueeze(1), -torch.inf)
    kept = torch.nn.functional.pad(kept, (0, -kept.shape[1] % block_size), value=-torch.inf)
    best = kept.unflatten(1, (-1, block_size)).amax(-1).clamp_(max=torch.finfo(torch.bfloat16).max)
    blocks = torch.floor_divide(lengths + (block_size - 1), integer(block_size))
    newest = columns[: best.shape[1]] == (blocks - 1).unsqueeze(1)
    return best.masked_fill_(newest, torch.inf), blocks
