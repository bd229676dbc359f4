"""``attention``: sparse attention over caches and gathered rows, and where rows read and write."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation, PlanRequest
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import Site, attribute_in, dtype_in, one_of
from deepinfer_core.tensor import Cache
from deepinfer_cuda.attention_cuts import AttentionCut, attention_cut, most_parts, part_blocks
from deepinfer_cuda.kernels.merge_parts import merge_parts_kernel
from deepinfer_cuda.kernels.sparse_decode import sparse_decode_kernel
from deepinfer_cuda.kernels.sparse_prefill import sparse_prefill_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops import attention_metadata, attention_output
from deepinfer_cuda.row_tiles import power_of_two

_LOG2_E = math.log2(math.e)


def run_sparse_decode(
    query: Tensor,
    window: Cache,
    window_slots: Tensor,
    sink: Tensor,
    context: Cache | None = None,
    context_slots: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """``attention.sparse_decode``; few rows are spread over all multiprocessors by their keys."""
    del round_probabilities, plan
    keys = _Keys.of(window, window_slots, context, context_slots)
    cut = attention_cut("decode", query.shape[1])
    blocks = cut.blocks(*keys.widths)
    part = part_blocks(query.shape[0] * cut.head_programs(query.shape[1]), blocks)
    if part == blocks:
        return _attend_whole(query, keys, sink, scale, out, cut)
    return _attend_in_parts(query, keys, sink, scale, out, cut, part)


def run_sparse_decode_whole(
    query: Tensor,
    window: Cache,
    window_slots: Tensor,
    sink: Tensor,
    context: Cache | None = None,
    context_slots: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """``attention.sparse_decode``; always one program for the keys of a row, so its bits never depend on other rows."""
    del round_probabilities, plan
    keys = _Keys.of(window, window_slots, context, context_slots)
    return _attend_whole(query, keys, sink, scale, out, attention_cut("decode", query.shape[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """Where a decode row finds its keys; without a context its fields repeat the window's and ``widths[1]`` is 0."""

    window: Cache
    window_slots: Tensor
    context: Cache
    context_slots: Tensor
    widths: tuple[int, int]

    @staticmethod
    def of(window: Cache, window_slots: Tensor, context: Cache | None, context_slots: Tensor | None) -> _Keys:
        width = window_slots.shape[1]
        if context is None or context_slots is None:
            context, context_slots, selected = window, window_slots, 0
        else:
            selected = context_slots.shape[1]
        return _Keys(
            window=window,
            window_slots=window_slots.contiguous(),
            context=context,
            context_slots=context_slots.contiguous(),
            widths=(width, selected),
        )


def _attend_whole(query: Tensor, keys: _Keys, sink: Tensor, scale: float, out: str, cut: AttentionCut) -> Tensor:
    """One program for all keys of a row."""
    result = torch.empty(query.shape, dtype=TORCH_DTYPES[out], device=query.device)
    _attend(query, keys, sink, scale, cut, cut.blocks(*keys.widths), (result, sink, sink))
    return result


def _attend_in_parts(
    query: Tensor, keys: _Keys, sink: Tensor, scale: float, out: str, cut: AttentionCut, part: int
) -> Tensor:
    """One program for ``part`` blocks of the keys of a row, then another kernel joins what they found."""
    num_rows, num_heads, channels = query.shape
    num_parts = -(-cut.blocks(*keys.widths) // part)
    shape = (num_rows, num_parts, num_heads)
    values = torch.empty((*shape, channels), dtype=torch.float32, device=query.device)
    maxima, totals = (torch.empty(shape, dtype=torch.float32, device=query.device) for _ in range(2))
    _attend(query, keys, sink, scale, cut, part, (values, maxima, totals))
    result = torch.empty(query.shape, dtype=TORCH_DTYPES[out], device=query.device)
    launch(
        merge_parts_kernel,
        (num_rows, num_heads),
        *(values, maxima, totals, result, num_parts),
        NUM_HEADS=num_heads,
        CHANNELS=channels,
        PARTS=power_of_two(num_parts),
    )
    return result


def sparse_decode_workspace(request: PlanRequest, site: Site) -> int:
    """Room of ``attention.sparse_decode`` in parts: float32 values, a maximum and a total of each head and part."""
    if request.prefill or not request.rows:
        return 0
    num_heads, channels = site.sizes["N"], site.sizes["D"]
    return most_parts(num_heads) * 4 * num_heads * (channels + 2)


def _attend(
    query: Tensor,
    keys: _Keys,
    sink: Tensor,
    scale: float,
    cut: AttentionCut,
    part: int,
    results: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Start the kernel with ``part`` blocks of keys for a program.

    Args:
        query: Rotated queries.
        keys: Where rows find their keys.
        sink: Extra logit of each head.
        scale: Factor of the logits.
        cut: Constants of the launch.
        part: Blocks of keys of a program.
        results: Values, maxima and totals; a single part writes only the first one.
    """
    num_rows, num_heads, channels = query.shape
    rows, row_stride = rows_of(query.flatten(1))
    ring, entries = keys.window, keys.context
    launch(
        sparse_decode_kernel,
        (num_rows, cut.head_programs(num_heads), -(-cut.blocks(*keys.widths) // part)),
        *(rows, ring.storage, keys.window_slots, entries.storage, keys.context_slots, sink, *results),
        *(row_stride, ring.storage.stride(0), entries.storage.stride(0), scale * _LOG2_E, part),
        NUM_HEADS=num_heads,
        CHANNELS=channels,
        WINDOW=keys.widths[0],
        WINDOW_ROWS=ring.rows_per_block,
        CONTEXT=keys.widths[1],
        CONTEXT_ROWS=entries.rows_per_block,
        CONTEXT_FORMAT=entries.format,
        **cut.constants,
    )


def run_sparse_prefill(
    query: Tensor,
    window_rows: Tensor,
    window_indices: Tensor,
    sink: Tensor,
    context_rows: Tensor | None = None,
    context_indices: Tensor | None = None,
    *,
    scale: float,
    round_probabilities: bool,
    out: str,
    plan: object = None,
) -> Tensor:
    """``attention.sparse_prefill``."""
    del round_probabilities, plan
    num_rows, num_heads, channels = query.shape
    cut = attention_cut("prefill", num_heads)
    result = torch.empty(query.shape, dtype=TORCH_DTYPES[out], device=query.device)
    rows, row_stride = rows_of(query.flatten(1))
    window, window_stride = rows_of(window_rows)
    num_selected = 0
    context, context_stride, selected = window, window_stride, window_indices
    if context_rows is not None and context_indices is not None:
        context, context_stride = rows_of(context_rows)
        selected, num_selected = context_indices, context_indices.shape[1]
    launch(
        sparse_prefill_kernel,
        (num_rows, cut.head_programs(num_heads)),
        *(rows, window, window_indices.contiguous(), context, selected.contiguous(), sink, result),
        *(row_stride, window_stride, context_stride, scale * _LOG2_E),
        NUM_HEADS=num_heads,
        CHANNELS=channels,
        WINDOW=window_indices.shape[1],
        CONTEXT=num_selected,
        **cut.constants,
    )
    return result


_BF16 = (dtype_in("bf16"), attribute_in("round_probabilities", True))
_CHANNELS = one_of("D", 64, 128, 256, 512)
_FEW_CHANNELS = one_of("D", 32, 64, 128, 256, 512)

IMPLEMENTATIONS = {
    sparse_decode: (
        Implementation(
            run_sparse_decode,
            (*_BF16, _CHANNELS),
            note="few rows: keys spread over programs",
            workspace=sparse_decode_workspace,
        ),
        Implementation(run_sparse_decode_whole, (*_BF16, _CHANNELS), row_invariant=True, note="one program for a row"),
    ),
    sparse_prefill: (Implementation(run_sparse_prefill, (*_BF16, _FEW_CHANNELS), row_invariant=True),),
    **attention_metadata.IMPLEMENTATIONS,
    **attention_output.IMPLEMENTATIONS,
}
