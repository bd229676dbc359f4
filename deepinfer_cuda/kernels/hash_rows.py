"""Table rows of every token: the hashes of the n-grams that end in it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def hash_rows_kernel(
    context_ptr, ids_ptr, multipliers_ptr, primes_ptr, offsets_ptr, result_ptr, num_rows, context_stride,
    LENGTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """64-bit integers throughout: products stay below 2^63 and are never negative."""
    HEADS: tl.constexpr = COLUMNS // (LENGTH - 1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = row < num_rows
    column = tl.arange(0, BLOCK)
    inside = column < COLUMNS
    size = column // HEADS + 2
    context = context_ptr + row.to(tl.int64) * context_stride
    mixed = tl.zeros((ROWS, BLOCK), tl.int64)
    for place in tl.static_range(LENGTH):
        token = tl.load(context + place, mask=present, other=0).to(tl.int64)
        key = token * tl.load(multipliers_ptr + place)
        mixed = tl.where((size > place)[None, :], mixed ^ key[:, None], mixed)
    prime = tl.load(primes_ptr + column, mask=inside, other=1)
    offset = tl.load(offsets_ptr + column, mask=inside, other=0)
    rows = (mixed % prime[None, :] + offset[None, :]).to(tl.int32)
    has_rows = tl.load(ids_ptr + row, mask=present, other=-1) >= 0
    result = result_ptr + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    tl.store(result, tl.where(has_rows[:, None], rows, -1), mask=present[:, None] & inside[None, :])
