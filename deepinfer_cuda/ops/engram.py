"""``engram``: the n-gram memory."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.backend.interface import Implementation
from deepinfer_core.ops.engram.gate import gate
from deepinfer_core.ops.engram.hash_rows import hash_rows
from deepinfer_core.ops.engram.lookup import lookup
from deepinfer_core.ops.engram.ngram_context import ngram_context
from deepinfer_core.ops.limits import at_most, dtype_in
from deepinfer_core.tensor import QuantTensor
from deepinfer_cuda.kernels.engram_gate import engram_gate_kernel
from deepinfer_cuda.kernels.hash_rows import hash_rows_kernel
from deepinfer_cuda.kernels.lookup import lookup_kernel
from deepinfer_cuda.kernels.ngram_context import ngram_context_kernel
from deepinfer_cuda.launch import launch
from deepinfer_cuda.quantised import empty_quantised
from deepinfer_cuda.row_tiles import WIDEST, flat_rows, power_of_two, split_rows, whole_rows

_CONTEXT_ROWS = 128
_HASH_ROWS = 16


def run_ngram_context(
    compressed_ids: Tensor, positions: Tensor, row_sequence: Tensor, history: Tensor, *, max_ngram: int, pad_id: int
) -> Tensor:
    """``engram.ngram_context``."""
    num_rows = len(compressed_ids)
    past, stride = flat_rows(history)
    result = torch.empty((num_rows, max_ngram), dtype=torch.int32, device=compressed_ids.device)
    indices = (tensor.contiguous() for tensor in (compressed_ids, positions, row_sequence))
    launch(
        ngram_context_kernel,
        (-(-num_rows // _CONTEXT_ROWS),),
        *(*indices, past, result, num_rows, stride, pad_id),
        LENGTH=max_ngram,
        ROWS=_CONTEXT_ROWS,
    )
    return result


def run_hash_rows(
    context: Tensor, compressed_ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor
) -> Tensor:
    """``engram.hash_rows``."""
    tokens, stride = flat_rows(context)
    num_rows, num_columns = len(context), len(primes)
    result = torch.empty((num_rows, num_columns), dtype=torch.int32, device=context.device)
    launch(
        hash_rows_kernel,
        (-(-num_rows // _HASH_ROWS),),
        *(tokens, compressed_ids.contiguous(), multipliers, primes, offsets, result, num_rows, stride),
        LENGTH=context.shape[1],
        COLUMNS=num_columns,
        BLOCK=power_of_two(num_columns),
        ROWS=_HASH_ROWS,
    )
    return result


def run_lookup(rows: Tensor, table: QuantTensor) -> QuantTensor:
    """``engram.lookup``."""
    width = table.shape[1]
    num_tokens, num_columns = rows.shape
    result = empty_quantised((num_tokens, num_columns * width), table.format, rows.device)
    numbers = rows.contiguous()
    tile = whole_rows(width)
    launch(
        lookup_kernel,
        tile.grid(numbers.numel()),
        *(numbers, table.data.view(torch.uint8), table.scale, result.data.view(torch.uint8), result.scale),
        *(numbers.numel(), table.data.stride(0), table.scale.stride(0)),
        WIDTH=width,
        BLOCK=tile.block,
        ROWS=tile.rows,
        GROUP=table.spec.group,
        num_warps=tile.num_warps,
    )
    return result


def run_gate(streams: Tensor, key_value: Tensor, query_weight: Tensor, key_weight: Tensor, *, eps: float) -> Tensor:
    """``engram.gate``."""
    num_tokens, num_streams, width = streams.shape
    x = streams if streams.stride(-1) == 1 else streams.contiguous()
    memory, memory_stride = flat_rows(key_value)
    result = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    tile, rest = split_rows(width)
    launch(
        engram_gate_kernel,
        (num_tokens * num_streams,),
        *(x, memory, query_weight, key_weight, result, x.stride(0), x.stride(1), memory_stride),
        *(query_weight.stride(0), key_weight.stride(0), eps),
        STREAMS=num_streams,
        WIDTH=width,
        FIRST=tile.block,
        REST=rest,
        num_warps=tile.num_warps,
    )
    return result


_ACTIVATIONS = dtype_in("bf16", "f32")

IMPLEMENTATIONS = {
    ngram_context: (Implementation(run_ngram_context),),
    hash_rows: (Implementation(run_hash_rows, row_invariant=True),),
    lookup: (Implementation(run_lookup, (at_most("D", WIDEST),), row_invariant=True),),
    gate: (Implementation(run_gate, (_ACTIVATIONS, at_most("H", WIDEST)), row_invariant=True),),
}
