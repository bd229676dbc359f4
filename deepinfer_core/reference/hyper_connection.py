"""Residual streams around a sub-layer on the CPU (spec model/04)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from deepinfer_core.reference.chunks import map_rows, row_chunks, rows_at_once
from deepinfer_core.reference.norm import inverse_rms, normed
from deepinfer_core.reference.products import fewest_rows, product
from deepinfer_core.reference.rounding import cast, constant, through

Mixes = tuple[Tensor, Tensor, Tensor]


def run_enter(
    streams: Tensor,
    mix: Tensor,
    function: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_weight: Tensor,
    *,
    norm_eps: float,
    eps: float,
    iterations: int,
    shifted: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``hyper_connection.enter`` with the mix that the sub-layer before handed over (``shifted``)."""
    del shifted
    weight, transposed = norm_weight.float(), function.t()

    def work(streams: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
        wide = streams.float()
        row = through(_collapsed(wide, mix), streams.dtype)
        return normed(row, weight, norm_eps), _projected(wide, transposed, norm_eps)

    count, num_streams, hidden = streams.shape
    if count <= rows_at_once(2 * num_streams * hidden):
        made, projected = work(streams, mix)
        rows = cast(made, streams.dtype)
    else:
        rows, projected = streams.new_empty(count, hidden), mix.new_empty(count, len(base))
        for chunk in row_chunks(count, 2 * num_streams * hidden):
            rows[chunk], projected[chunk] = work(streams[chunk], mix[chunk])
    return rows, *_mixes(projected, base, scale, num_streams, eps, iterations)


def run_mixes(
    streams: Tensor, function: Tensor, base: Tensor, scale: Tensor, *, norm_eps: float, eps: float, iterations: int
) -> Mixes:
    """``hyper_connection.mixes``."""
    return _mixes(_projected(streams.float(), function.t(), norm_eps), base, scale, streams.shape[1], eps, iterations)


def run_collapse(streams: Tensor, mix: Tensor) -> Tensor:
    """``hyper_connection.collapse``."""
    return cast(_collapsed(streams.float(), mix), streams.dtype)


def run_update(output: Tensor, streams: Tensor, post: Tensor, combination: Tensor) -> Tensor:
    """``hyper_connection.update``: one multiply-add per input stream, over all output streams."""

    def work(output: Tensor, streams: Tensor, post: Tensor, combination: Tensor) -> Tensor:
        new = post.unsqueeze(-1) * output.float().unsqueeze(1)
        factors, old = combination.unsqueeze(-1).unbind(1), streams.float().unsqueeze(2).unbind(1)
        for factor, stream in zip(factors, old, strict=True):
            new.addcmul_(factor, stream)
        return new

    rows = (output, streams, post, combination)
    return map_rows(work, rows, 2 * streams.shape[1] * streams.shape[2], streams.dtype)


def _collapsed(streams: Tensor, mix: Tensor) -> Tensor:
    """Float32 streams weighed by the mix and summed."""
    return torch.bmm(mix.unsqueeze(1), streams).squeeze(1)


def _projected(streams: Tensor, function: Tensor, eps: float) -> Tensor:
    """The transposed function applied to the row of all streams, divided by its root-mean-square."""
    flat = streams.flatten(1)
    return product(flat, function).mul_(inverse_rms(flat, eps))


def _mixes(z: Tensor, base: Tensor, scale: Tensor, count: int, eps: float, iterations: int) -> Mixes:
    """``pre``, ``post`` and ``combination`` from the normalised projection."""
    z = torch.addcmul(base, z, scale.index_select(0, _factor_of_mix(count)))
    pre, post = z[:, : 2 * count].sigmoid().chunk(2, -1)
    logits = z[:, 2 * count :].unflatten(-1, (count, count))
    return pre + constant(eps), post * constant(2.0), _sinkhorn(logits, eps, iterations)


def _sinkhorn(logits: Tensor, eps: float, iterations: int) -> Tensor:
    """Row softmax, then alternate column and row normalisation, columns first and last, all in place.

    A product with a matrix of zeros and ones gives every entry the sum of its row or column; a column of ones
    beside the entries brings ``eps`` into the same product.
    """
    num_rows, count = logits.shape[:2]
    table = logits.new_ones(max(num_rows, fewest_rows(logits.dtype)), count * count + 1)
    entries = table[:, :-1]
    torch.add(torch.softmax(logits, -1).flatten(1), constant(eps), out=entries[:num_rows])
    of_rows, of_columns = _sums(count, eps)
    sums = torch.mm(table, of_columns)
    entries.div_(sums)
    for _ in range(iterations - 1):
        entries.div_(torch.mm(table, of_rows, out=sums))
        entries.div_(torch.mm(table, of_columns, out=sums))
    return entries[:num_rows].unflatten(-1, (count, count))


@lru_cache(maxsize=8)
def _sums(count: int, eps: float) -> tuple[Tensor, Tensor]:
    """Matrices ``[count^2 + 1, count^2]``: entry -> sum of its row, and of its column, plus ``eps``."""
    same, every = torch.eye(count), torch.ones(count, count)
    bias = torch.full((1, count * count), eps)
    return torch.cat((torch.kron(same, every), bias)), torch.cat((torch.kron(every, same), bias))


@lru_cache(maxsize=8)
def _factor_of_mix(count: int) -> Tensor:
    """Which of the three factors belongs to each mixing number: pre, post, combination."""
    return torch.repeat_interleave(torch.tensor([count, count, count * count]))
