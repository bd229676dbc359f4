"""``attention``: sparse attention over caches and gathered rows, and where rows read and write."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.attention.sparse_decode import sparse_decode
from deepinfer_core.ops.attention.sparse_prefill import sparse_prefill
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.limits import attribute_in, dtype_in, one_of
from deepinfer_core.tensor import Cache
from deepinfer_cuda.attention_cuts import AttentionCut, attention_cut, part_blocks
from deepinfer_cuda.kernels.merge_parts import merge_parts_kernel
from deepinfer_cuda.kernels.sparse_decode import sparse_decode_kernel
from deepinfer_cuda.kernels.sparse_prefill import sparse_prefill_kernel
from deepinfer_cuda.launch import launch, rows_of
from deepinfer_cuda.ops import attention_metadata

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
    cut = attention_cut("decode", query.shape[1])
    blocks = cut.blocks(window_slots.shape[1], 0 if context_slots is None else context_slots.shape[1])
    part = part_blocks(query.shape[0] * cut.head_programs(query.shape[1]), blocks)
    return _decode(query, (window, window_slots), sink, (context, context_slots), scale, out, cut, blocks, part)


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
    cut = attention_cut("decode", query.shape[1])
    blocks = cut.blocks(window_slots.shape[1], 0 if context_slots is None else context_slots.shape[1])
    return _decode(query, (window, window_slots), sink, (context, context_slots), scale, out, cut, blocks, blocks)


def _decode(
    query: Tensor,
    window: tuple[Cache, Tensor],
    sink: Tensor,
    context: tuple[Cache | None, Tensor | None],
    scale: float,
    out: str,
    cut: AttentionCut,
    blocks: int,
    part: int,
) -> Tensor:
    """Start the kernel on parts of ``part`` of the ``blocks`` blocks, and join the parts if there are several."""
    num_rows, num_heads, channels = query.shape
    num_parts = -(-blocks // part)
    result = torch.empty(query.shape, dtype=TORCH_DTYPES[out], device=query.device)
    shape = (num_rows, num_parts, num_heads)
    values = result if num_parts == 1 else torch.empty((*shape, channels), dtype=torch.float32, device=query.device)
    maxima, totals = (torch.empty(shape, dtype=torch.float32, device=query.device) for _ in range(2))
    rows, row_stride = rows_of(query.flatten(1))
    ring, ring_slots = window
    cache, slots = (ring, ring_slots) if context[0] is None or context[1] is None else context
    launch(
        sparse_decode_kernel,
        (num_rows, cut.head_programs(num_heads), num_parts),
        *(rows, ring.storage, ring_slots.contiguous(), cache.storage, slots.contiguous(), sink, values, maxima, totals),
        *(row_stride, ring.storage.stride(0), cache.storage.stride(0), scale * _LOG2_E, part),
        NUM_HEADS=num_heads,
        CHANNELS=channels,
        WINDOW=ring_slots.shape[1],
        WINDOW_ROWS=ring.rows_per_block,
        CONTEXT=0 if cache is ring else slots.shape[1],
        CONTEXT_ROWS=cache.rows_per_block,
        CONTEXT_FORMAT=cache.format,
        **cut.constants,
    )
    if num_parts > 1:
        launch(
            merge_parts_kernel,
            (num_rows, num_heads),
            *(values, maxima, totals, result, num_parts),
            NUM_HEADS=num_heads,
            CHANNELS=channels,
            PARTS=1 << (num_parts - 1).bit_length(),
        )
    return result


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
    has_context = context_rows is not None and context_indices is not None
    context, context_stride = rows_of(context_rows) if has_context else (window, window_stride)
    indices = context_indices if has_context else window_indices
    launch(
        sparse_prefill_kernel,
        (num_rows, cut.head_programs(num_heads)),
        *(rows, window, window_indices.contiguous(), context, indices.contiguous(), sink, result),
        *(row_stride, window_stride, context_stride, scale * _LOG2_E),
        NUM_HEADS=num_heads,
        CHANNELS=channels,
        WINDOW=window_indices.shape[1],
        CONTEXT=indices.shape[1] if has_context else 0,
        **cut.constants,
    )
    return result


_BF16 = (dtype_in("bf16"), attribute_in("round_probabilities", True))
_CHANNELS = one_of("D", 64, 128, 256, 512)
_FEW_CHANNELS = one_of("D", 32, 64, 128, 256, 512)

IMPLEMENTATIONS = {
    sparse_decode: (
        Implementation(run_sparse_decode, (*_BF16, _CHANNELS), note="few rows: keys spread over programs"),
        Implementation(run_sparse_decode_whole, (*_BF16, _CHANNELS), row_invariant=True, note="one program for a row"),
    ),
    sparse_prefill: (Implementation(run_sparse_prefill, (*_BF16, _FEW_CHANNELS), row_invariant=True),),
    **attention_metadata.IMPLEMENTATIONS,
}
