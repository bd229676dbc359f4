"""``kv_cache``: rows into caches and back."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.cases import TORCH_DTYPES
from deepinfer_core.ops.kv_cache.compress_pairs import compress_pairs
from deepinfer_core.ops.kv_cache.rotate_store import extend_window, rotate_store
from deepinfer_core.ops.kv_cache.store import copy_blocks, load, store
from deepinfer_core.ops.limits import at_most, attribute_in, dtype_in
from deepinfer_core.tensor import Cache
from deepinfer_cuda.kernels.compress_pairs import compress_pairs_kernel
from deepinfer_cuda.kernels.copy_blocks import copy_blocks_kernel
from deepinfer_cuda.kernels.load import load_kernel
from deepinfer_cuda.kernels.rotate_store import rotate_store_kernel
from deepinfer_cuda.kernels.store import store_kernel
from deepinfer_cuda.launch import launch
from deepinfer_cuda.quantised import cache_constants
from deepinfer_cuda.row_tiles import WIDEST, flat_rows, power_of_two, whole_rows

_COPY_BYTES = 16384
"""Bytes that one program of a block copy moves."""
_SCAN_ROWS = 1024
"""Rows that a program of the compressor looks at in one load."""


def run_store(rows: Tensor, slots: Tensor, cache: Cache) -> None:
    """``kv_cache.store``."""
    dense, stride = flat_rows(rows)
    tile = whole_rows(cache.width)
    launch(
        store_kernel,
        tile.grid(len(rows)),
        *(dense, slots.contiguous(), cache.storage, len(rows), stride, cache.storage.stride(0)),
        WIDTH=cache.width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        num_warps=tile.num_warps,
        **cache_constants(cache),
    )


def run_load(slots: Tensor, cache: Cache, *, out: str) -> Tensor:
    """``kv_cache.load``."""
    result = torch.empty((len(slots), cache.width), dtype=TORCH_DTYPES[out], device=slots.device)
    _load(slots, cache, result)
    return result


def _load(slots: Tensor, cache: Cache, result: Tensor) -> None:
    """Values of cached rows into dense rows."""
    tile = whole_rows(cache.width)
    launch(
        load_kernel,
        tile.grid(len(slots)),
        *(slots.contiguous(), cache.storage, result, len(slots), cache.storage.stride(0)),
        WIDTH=cache.width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        num_warps=tile.num_warps,
        **cache_constants(cache),
    )


def run_copy_blocks(pool: Tensor, pairs: Tensor) -> None:
    """``kv_cache.copy_blocks``."""
    launch(
        copy_blocks_kernel,
        (-(-pool.shape[1] // _COPY_BYTES), len(pairs)),
        *(pool, pairs.contiguous(), pool.shape[1], pool.stride(0)),
        CHUNK=_COPY_BYTES,
        num_warps=8,
    )


def run_compress_pairs(
    gate: Tensor,
    value: Tensor,
    positions: Tensor,
    row_sequence: Tensor,
    state_slots: Tensor,
    context_lengths: Tensor,
    ring: Tensor,
    *,
    out: str,
) -> Tensor:
    """``kv_cache.compress_pairs``."""
    gates, gate_stride = flat_rows(gate)
    values, value_stride = flat_rows(value)
    num_rows, width = gate.shape
    result = torch.empty((num_rows, width), dtype=TORCH_DTYPES[out], device=gate.device)
    indices = (tensor.contiguous() for tensor in (positions, row_sequence, state_slots, context_lengths))
    launch(
        compress_pairs_kernel,
        (num_rows,),
        *(gates, values, *indices, ring, result, gate_stride, value_stride, *ring.stride()[:3]),
        RING=ring.shape[1],
        WIDTH=width,
        BLOCK=power_of_two(width),
        SCAN=_SCAN_ROWS,
        num_warps=4,
    )
    return result


def run_rotate_store(
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    slots: Tensor,
    cache: Cache,
    norm_weight: Tensor | None = None,
    *,
    eps: float,
) -> None:
    """``kv_cache.rotate_store``."""
    _rotate_store(rows, positions, table, slots, cache, norm_weight, None, eps)


def run_extend_window(
    rows: Tensor,
    norm_weight: Tensor,
    positions: Tensor,
    table: Tensor,
    history_slots: Tensor,
    store_slots: Tensor,
    cache: Cache,
    *,
    eps: float,
    out: str,
) -> Tensor:
    """``kv_cache.extend_window``: two launches, for a slot may be read as history and written by a row of the step."""
    num_history = len(history_slots)
    result = torch.empty((num_history + len(rows), cache.width), dtype=TORCH_DTYPES[out], device=rows.device)
    _load(history_slots, cache, result[:num_history])
    _rotate_store(rows, positions, table, store_slots, cache, norm_weight, result[num_history:], eps)
    return result


def _rotate_store(
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    slots: Tensor,
    cache: Cache,
    norm_weight: Tensor | None,
    result: Tensor | None,
    eps: float,
) -> None:
    """Norm if there is a weight, rotate, store; what was stored also goes to ``result``."""
    dense, stride = flat_rows(rows)
    angles, table_stride = flat_rows(table)
    tile = whole_rows(cache.width, "rotate_store")
    launch(
        rotate_store_kernel,
        tile.grid(len(rows)),
        *(dense, norm_weight, positions.contiguous(), angles, slots.contiguous(), cache.storage, result),
        *(len(rows), stride, table_stride, cache.storage.stride(0), eps),
        TURNED=table.shape[1],
        WIDTH=cache.width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        **cache_constants(cache),
        num_warps=tile.num_warps,
    )


_WIDTH = at_most("D", WIDEST)
_ACTIVATIONS = (dtype_in("bf16", "f32"), _WIDTH)

IMPLEMENTATIONS = {
    store: (Implementation(run_store, _ACTIVATIONS, row_invariant=True),),
    load: (Implementation(run_load, (attribute_in("out", "bf16", "f32"), _WIDTH), row_invariant=True),),
    copy_blocks: (Implementation(run_copy_blocks),),
    compress_pairs: (Implementation(run_compress_pairs, (*_ACTIVATIONS, attribute_in("out", "bf16", "f32"))),),
    rotate_store: (Implementation(run_rotate_store, _ACTIVATIONS, row_invariant=True),),
    extend_window: (
        Implementation(
            run_extend_window,
            (*_ACTIVATIONS, attribute_in("out", "bf16", "f32")),
            row_invariant=True,
            note="two launches: the history is read before the ring is written",
        ),
    ),
}
