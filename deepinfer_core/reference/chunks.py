"""Many rows are worked on a few at a time, so that what one step leaves is still in the cache for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from deepinfer_core.reference.rounding import cast

_BYTES_AT_ONCE = 1 << 21
_LEAST_ROWS = 16


def rows_at_once(width: int) -> int:
    """Rows of which ``width`` float32 numbers each are in work together."""
    return max(_BYTES_AT_ONCE // (4 * max(width, 1)) // _LEAST_ROWS, 1) * _LEAST_ROWS


def row_chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Slices that cover the rows, each of at most :func:`rows_at_once`."""
    step = rows_at_once(width)
    for start in range(0, num_rows, step):
        yield slice(start, start + step)


def map_rows(
    work: Callable[..., Tensor], rows: tuple[Tensor, ...], width: int, dtype: torch.dtype, *, fewest: int = 0
) -> Tensor:
    """``work`` applied to a few rows at a time; its results one after the other, as ``dtype``.

    Args:
        work: Takes the tensors of ``rows`` with fewer rows, returns a tensor with a row for each of them.
        rows: Tensors with the same number of rows.
        width: Numbers in work for each row.
        dtype: Element type of the result.
        fewest: Rows that ``work`` gets at least; copies of the last one make up for those that are missing.
    """
    num_rows = rows[0].shape[0]
    if num_rows <= rows_at_once(width):
        return cast(_with_company(work, rows, fewest), dtype)
    result: Tensor | None = None
    for chunk in row_chunks(num_rows, width):
        made = _with_company(work, tuple(tensor[chunk] for tensor in rows), fewest)
        if result is None:
            result = made.new_empty(num_rows, *made.shape[1:], dtype=dtype)
        result[chunk] = made
    return rows[0] if result is None else result


def _with_company(work: Callable[..., Tensor], rows: tuple[Tensor, ...], fewest: int) -> Tensor:
    count = rows[0].shape[0]
    if count >= fewest or not count:
        return work(*rows)
    return work(*(with_copies(tensor, fewest) for tensor in rows))[:count]


def with_copies(rows: Tensor, count: int) -> Tensor:
    """``count`` rows: those given, then copies of the last one."""
    return torch.cat((rows, rows[-1:].expand(count - rows.shape[0], *rows.shape[1:])))
