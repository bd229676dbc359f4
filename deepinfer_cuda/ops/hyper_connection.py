"""``hyper_connection``: residual streams around a sub-layer."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation, PlanRequest
from deepinfer_core.ops.hyper_connection.enter import enter
from deepinfer_core.ops.hyper_connection.mixes import head_mix, mixes
from deepinfer_core.ops.hyper_connection.retain_rows import retain_rows
from deepinfer_core.ops.hyper_connection.streams import collapse, expand, update
from deepinfer_core.ops.limits import Site, attribute_in, dtype_in, one_of
from deepinfer_cuda.kernels.collapse_streams import collapse_streams_kernel
from deepinfer_cuda.kernels.expand_streams import expand_streams_kernel
from deepinfer_cuda.kernels.hyper_connection_enter import hyper_connection_enter_kernel
from deepinfer_cuda.kernels.hyper_connection_update import hyper_connection_update_kernel
from deepinfer_cuda.kernels.retain_rows import retain_rows_kernel
from deepinfer_cuda.kernels.stream_mixes import stream_mixes_kernel
from deepinfer_cuda.kernels.stream_projection import split_function_kernel, stream_projection_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.row_tiles import power_of_two

_CHOICES = Path(__file__).parent.parent / "tuning" / "hyper_connection.toml"
_SUMS = 32
"""Numbers that the projection leaves for each row and part."""
_SPLIT_COLUMNS = 128
"""Columns of a program that cuts the function into halves."""


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
    """``hyper_connection.enter``: the streams are read once, the collapsed rows are normed in place."""
    del shifted
    num_rows, _, width = streams.shape
    x = torch.empty((num_rows, width), dtype=streams.dtype, device=streams.device)
    pre, post, combination = _empty_mixes(streams)
    halves = _split_function(function)
    at_once = choices()["norm"]["rows_at_once"]
    for start in range(0, num_rows, at_once):
        part = slice(start, start + at_once)
        sums = _project(streams[part], halves, mix=mix[part], collapsed=x[part])
        results = x[part], pre[part], post[part], combination[part]
        _norm_and_mix(sums, norm_weight, base, scale, results, norm_eps=norm_eps, eps=eps, iterations=iterations)
    return x, pre, post, combination


def _norm_and_mix(
    sums: Tensor,
    norm_weight: Tensor,
    base: Tensor,
    scale: Tensor,
    results: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> None:
    """Norm collapsed rows in place (the first of the results) and make the mixes, from the sums of the projection."""
    num_rows, width = results[0].shape
    choice = choices()["norm"]
    launch(
        hyper_connection_enter_kernel,
        (-(-width // choice["block"]) + 1, -(-num_rows // choice["rows"])),
        *(results[0], norm_weight, sums, base, scale, *results[1:], num_rows, width, norm_eps, eps),
        PARTS=len(sums),
        STREAMS=results[1].shape[1],
        ITERATIONS=iterations,
        ROWS=choice["rows"],
        MIX_ROWS=choice["mix_rows"],
        BLOCK=choice["block"],
        COPIES=max(32 * choice["num_warps"] // choice["rows"], 1),
        num_warps=choice["num_warps"],
    )


def run_mixes(
    streams: Tensor,
    function: Tensor,
    base: Tensor,
    scale: Tensor,
    *,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``hyper_connection.mixes``."""
    pre, post, combination = _empty_mixes(streams)
    sums = _project(streams, _split_function(function))
    _finish(streams, sums, base, scale, (pre, post, combination), norm_eps=norm_eps, eps=eps, iterations=iterations)
    return pre, post, combination


def run_head_mix(
    streams: Tensor, function: Tensor, base: Tensor, scale: Tensor, *, norm_eps: float, eps: float
) -> Tensor:
    """``hyper_connection.head_mix``."""
    pre = torch.empty(streams.shape[:2], dtype=torch.float32, device=streams.device)
    sums = _project(streams, _split_function(function))
    _finish(streams, sums, base, scale, (pre, pre, pre), norm_eps=norm_eps, eps=eps, iterations=0)
    return pre


def run_expand(x: Tensor, *, num_streams: int) -> tuple[Tensor, Tensor]:
    """``hyper_connection.expand``."""
    rows, stride = rows_of(x)
    num_rows, width = x.shape
    streams = torch.empty((num_rows, num_streams, width), dtype=x.dtype, device=x.device)
    mix = torch.empty((num_rows, num_streams), dtype=torch.float32, device=x.device)
    launch(
        expand_streams_kernel,
        _elementwise_grid(num_rows, width),
        *(rows, streams, mix, stride, width),
        STREAMS=num_streams,
        PADDED=power_of_two(num_streams),
        **_elementwise_constants(),
    )
    return streams, mix


def run_retain_rows(streams: Tensor, mix: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """``hyper_connection.retain_rows``."""
    num_streams, width = streams.shape[1:]
    dense, stride = _stream_rows(streams)
    factors, mix_stride = rows_of(mix)
    kept_streams = torch.empty((len(rows), num_streams, width), dtype=streams.dtype, device=streams.device)
    kept_mix = torch.empty((len(rows), num_streams), dtype=mix.dtype, device=mix.device)
    launch(
        retain_rows_kernel,
        _elementwise_grid(len(rows), num_streams * width),
        *(dense, factors, rows.contiguous(), kept_streams, kept_mix, stride, mix_stride, num_streams * width),
        STREAMS=num_streams,
        PADDED=power_of_two(num_streams),
        **_elementwise_constants(),
    )
    return kept_streams, kept_mix


def run_collapse(streams: Tensor, mix: Tensor) -> Tensor:
    """``hyper_connection.collapse``."""
    num_rows, num_streams, width = streams.shape
    rows, stride = _stream_rows(streams)
    weights, mix_stride = rows_of(mix)
    result = torch.empty((num_rows, width), dtype=streams.dtype, device=streams.device)
    launch(
        collapse_streams_kernel,
        _elementwise_grid(num_rows, width),
        *(rows, weights, result, stride, mix_stride, width),
        STREAMS=num_streams,
        **_elementwise_constants(),
    )
    return result


def run_update(output: Tensor, streams: Tensor, post: Tensor, combination: Tensor) -> Tensor:
    """``hyper_connection.update``."""
    num_rows, num_streams, width = streams.shape
    rows, stride = _stream_rows(streams)
    outputs, output_stride = rows_of(output)
    factors, post_stride = rows_of(post)
    pairs, pair_stride = _stream_rows(combination)
    result = torch.empty((num_rows, num_streams, width), dtype=streams.dtype, device=streams.device)
    launch(
        hyper_connection_update_kernel,
        _elementwise_grid(num_rows, width),
        *(outputs, rows, factors, pairs, result, output_stride, stride, post_stride, pair_stride, width),
        STREAMS=num_streams,
        **_elementwise_constants(),
    )
    return result


def _project(streams: Tensor, halves: Tensor, *, mix: Tensor | None = None, collapsed: Tensor | None = None) -> Tensor:
    """Sums ``[parts, T, 32]`` of the projection; collapses on the way if asked to."""
    num_rows, num_streams, width = streams.shape
    rows, stride = _stream_rows(streams)
    choice, tile = choices()["projection"], _projection_tile(num_rows if collapsed is not None else 1)
    parts = -(-width // choice["part"])
    sums = torch.empty((parts, num_rows, _SUMS), dtype=torch.float32, device=streams.device)
    factors, mix_stride = (sums, 0) if mix is None else rows_of(mix)
    launch(
        stream_projection_kernel,
        (parts, -(-num_rows // tile["rows"])),
        *(rows, factors, halves, rows if collapsed is None else collapsed, sums),
        *(stride, mix_stride, num_rows, width),
        STREAMS=num_streams,
        PART=choice["part"],
        BLOCK=choice["block"],
        ROWS=tile["rows"],
        COLLAPSE=collapsed is not None,
        num_warps=tile["num_warps"],
        num_stages=tile["num_stages"],
    )
    return sums


def _split_function(function: Tensor) -> Tensor:
    """Each float32 row of the function as two of bfloat16, ``[64, width]``."""
    weights, stride = rows_of(function)
    count, width = weights.shape
    halves = torch.empty((2 * _SUMS, width), dtype=torch.bfloat16, device=function.device)
    launch(
        split_function_kernel,
        (-(-width // _SPLIT_COLUMNS),),
        *(weights, halves, stride, width, count),
        BLOCK=_SPLIT_COLUMNS,
    )
    return halves


def _projection_tile(num_rows: int) -> dict[str, int]:
    """Tile of the projection for so many rows; all of them sum in the same order.

    Without a collapse there is less to do for a row, and the smallest tile serves any number of them.
    """
    tiles: list[dict[str, int]] = choices()["projection"]["tile"]
    return next((tile for tile in tiles if num_rows <= tile["max_rows"]), tiles[-1])


def projection_workspace(request: PlanRequest, site: Site) -> int:
    """Room of the ops that project: the sums of each row and part, in float32, and the halves of the function."""
    halves = 4 * _SUMS * site.sizes["C"] * site.sizes["H"]
    return 4 * _SUMS * -(-site.sizes["H"] // choices()["projection"]["part"]) * request.rows + halves


def _finish(
    streams: Tensor,
    sums: Tensor,
    base: Tensor,
    scale: Tensor,
    results: tuple[Tensor, Tensor, Tensor],
    *,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> None:
    """Mixes from the sums of a projection; without iterations only the first of them."""
    num_rows, num_streams, width = streams.shape
    choice = choices()["norm"]
    launch(
        stream_mixes_kernel,
        (-(-num_rows // choice["mix_rows"]),),
        *(sums, base, scale, *results, num_rows, num_streams * width, norm_eps, eps),
        PARTS=len(sums),
        STREAMS=num_streams,
        ITERATIONS=iterations,
        ROWS=choice["mix_rows"],
        HEAD=iterations == 0,
        num_warps=choice["num_warps"],
    )


def _empty_mixes(streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, num_streams, _ = streams.shape
    shapes = (num_rows, num_streams), (num_rows, num_streams), (num_rows, num_streams, num_streams)
    pre, post, combination = (torch.empty(s, dtype=torch.float32, device=streams.device) for s in shapes)
    return pre, post, combination


def _stream_rows(streams: Tensor) -> tuple[Tensor, int]:
    """A tensor of three axes whose last two are dense, and the distance of its rows in elements."""
    dense = streams if streams.stride()[1:] == (streams.shape[2], 1) else streams.contiguous()
    return dense, dense.stride(0)


def _elementwise_grid(num_rows: int, width: int) -> tuple[int, int]:
    return num_rows, -(-width // choices()["elementwise"]["block"])


def _elementwise_constants() -> dict[str, int]:
    choice = choices()["elementwise"]
    return {"BLOCK": choice["block"], "num_warps": choice["num_warps"]}


@cache
def choices() -> dict[str, Any]:
    """Block sizes and warps, as data."""
    return tomllib.loads(_CHOICES.read_text(encoding="utf-8"))


_PROJECTED = (dtype_in("bf16"), one_of("C", 1, 2, 4))
_SUMMED: dict[str, Any] = {"row_invariant": True, "workspace": projection_workspace}
_MOVED = (dtype_in("bf16", "f32"),)

IMPLEMENTATIONS = {
    enter: (Implementation(run_enter, (*_PROJECTED, attribute_in("shifted", True)), **_SUMMED),),
    mixes: (Implementation(run_mixes, _PROJECTED, **_SUMMED),),
    head_mix: (Implementation(run_head_mix, _PROJECTED, **_SUMMED),),
    expand: (Implementation(run_expand, _MOVED, row_invariant=True),),
    retain_rows: (Implementation(run_retain_rows, row_invariant=True),),
    collapse: (Implementation(run_collapse, _MOVED, row_invariant=True),),
    update: (Implementation(run_update, _MOVED, row_invariant=True),),
}
