"""Columns of the largest scores of a row, found through maxima of eight, 64, ... neighbours; one program a row.

The ``k`` best scores lie in the ``k`` best blocks of eight (by their maxima, smaller block first among equals): each of
those holds a score that comes before everything outside them. So selection starts at the highest level, and each level
below looks at the ``8 k`` members of the blocks chosen above it, however wide the row is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.block_maximum import LARGEST_BF16
from deepinfer_cuda.kernels.number_formats import INTERPRETED

_AT_LEAST = tl.constexpr("set.ge.bf16x2.bf16x2 $0, $1, $2;")
_ADD = tl.constexpr("add.rn.bf16x2 $0, $1, $2;")
_LOWEST = tl.constexpr(0x7F)
"""Order of -inf among the 65536 patterns; those below are NaN."""


@triton.jit
def top_k_kernel(
    scores_ptr,
    maxima_ptr,
    lengths_ptr,
    candidates_ptr,
    result_ptr,
    scores_stride,
    maxima_stride,
    candidates_stride,
    result_stride,
    width,
    second,
    num_candidates,
    k,
    LEVELS: tl.constexpr,
    TOP: tl.constexpr,
    PICKED: tl.constexpr,
    DIVISOR: tl.constexpr,
    NEWEST: tl.constexpr,
    CANDIDATE_SIZE: tl.constexpr,
    EVEN: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Select from one row.

    Args:
        scores_ptr: ``[T, width]`` bfloat16.
        maxima_ptr: Largest of every eight scores ``[T, ...]``, from column ``second`` on largest of every 64; rows of
            both are padded to a multiple of eight. Read with ``LEVELS`` 1 or 2.
        lengths_ptr: Columns that count, per row; with candidates the entries that the row sees.
        candidates_ptr: Blocks of entries whose scores lie side by side, ``[T, num_candidates]``; columns of the result
            are then entries. Only without ``LEVELS``.
        result_ptr: ``[T, k]`` int32, ascending, then -1.
        scores_stride: Distance of rows in elements, as the other strides.
        maxima_stride: See there.
        candidates_stride: See there.
        result_stride: See there.
        width: Columns of the scores.
        second: See ``maxima_ptr``.
        num_candidates: Columns of the candidates.
        k: How many to select.
        LEVELS: Levels of maxima above the scores.
        TOP: Power of two that holds the highest level and ``k``.
        PICKED: Power of two that holds ``k``.
        DIVISOR: Lengths are rounded up to multiples of it and divided.
        NEWEST: Whether the last column that counts is infinite and the others are capped.
        CANDIDATE_SIZE: Entries of a candidate, 0 without candidates.
        EVEN: Whether eight divides ``width``.
        WARPS: Warps of the program.
    """
    row = tl.program_id(0).to(tl.int64)
    scores, maxima = scores_ptr + row * scores_stride, maxima_ptr + row * maxima_stride
    result, candidates = result_ptr + row * result_stride, candidates_ptr + row * candidates_stride
    length = tl.cdiv(tl.load(lengths_ptr + row), DIVISOR)
    if CANDIDATE_SIZE == 0:
        length = tl.minimum(length, width)
    group = _places(TOP, WARPS)
    chosen = group >= 0
    low, high = _LOWEST, 0
    for step in tl.static_range(LEVELS + 1):
        values, column = _members(scores, maxima, group, chosen, length, width, second, LEVELS - step, EVEN)
        counted = tl.cdiv(length, 8 ** (LEVELS - step))
        if NEWEST:
            values = tl.where(column == counted - 1, float("inf"), tl.minimum(values, LARGEST_BF16))
        if CANDIDATE_SIZE > 0:
            column = _entries(candidates, group, num_candidates, counted, CANDIDATE_SIZE)
        counts = column < counted
        values = tl.where(counts, values, float("-inf")).to(tl.bfloat16)
        if step == 0:
            low, high = _bounds(values, PICKED)
        low = _kth_largest(values, k, low, high)
        place, selected, num_selected = _select(values, counts, _number_of(low), k)
        if step > 0:
            tl.debug_barrier()  # every group that was read above may be overwritten
        tl.store(result + place, column, mask=selected)
        if step < LEVELS:
            tl.debug_barrier()
            slot = _places(8 * PICKED, WARPS)
            chosen = slot < num_selected
            group = tl.load(result + slot, mask=chosen, other=0)
        else:
            slot = tl.arange(0, PICKED)
            tl.store(result + slot, -1, mask=(slot >= num_selected) & (slot < k))


@triton.jit
def _places(SIZE: tl.constexpr, WARPS: tl.constexpr):
    """Numbers of ``SIZE / 8`` groups of eight as ``[thread, repetition]``.

    As ``[thread, repetition, member]`` a load gives each thread 16 bytes of every repetition, in this order of axes, so
    that from then on a thread has a piece of the row, and what is done within a piece needs no other thread.
    """
    THREADS: tl.constexpr = 32 * WARPS if SIZE >= 256 * WARPS else SIZE // 8
    EACH: tl.constexpr = SIZE // (8 * THREADS)
    return tl.arange(0, THREADS)[:, None] * EACH + tl.arange(0, EACH)[None, :]


@triton.jit
def _pieces(tile):
    """``[thread, repetition, member]`` -> ``[thread, neighbours]``."""
    return tl.reshape(tile, [tile.shape[0], tile.shape[1] * 8])


@triton.jit
def _members(scores, maxima, group, chosen, length, width, second, LEVEL: tl.constexpr, EVEN: tl.constexpr):
    """Values (float32) and columns of the members of groups of eight at a level; what does not count is undefined."""
    member = tl.arange(0, 8)[None, None, :]
    column = group[:, :, None] * 8 + member
    if LEVEL == 0:
        # A mask that is the same for all members of a group keeps the load as wide as the group.
        inside = (chosen & (group * 8 < width))[:, :, None] & (member >= 0)
        if not EVEN:
            inside &= column < width
        values = tl.load(scores + column, mask=inside, other=float("-inf"))
    else:
        inside = (chosen & (group * 8 < tl.cdiv(length, 8**LEVEL)))[:, :, None] & (member >= 0)
        start = 0 if LEVEL == 1 else second
        values = tl.load(maxima + start + column, mask=inside, other=float("-inf"))
    column = tl.where(chosen[:, :, None], column, 1 << 30)
    return _pieces(values).to(tl.float32), _pieces(column)


@triton.jit
def _entries(candidates, group, num_candidates, nowhere, SIZE: tl.constexpr):
    """Entries of the compact columns of groups of eight; ``nowhere`` where there is no candidate."""
    member = tl.arange(0, 8)[None, None, :]
    if SIZE % 8 == 0:
        first = (group * 8)[:, :, None]
        offset = first % SIZE + member
    else:
        first = (group * 8)[:, :, None] + member
        offset = first % SIZE
    block = tl.load(candidates + first // SIZE, mask=first < num_candidates * SIZE, other=-1)
    return _pieces(tl.where(block >= 0, block * SIZE + offset, nowhere))


@triton.jit
def _select(values, counts, edge, k):
    """Of bfloat16 ``values`` (-inf where nothing counts) whose ``k``-th largest is ``edge``.

    Returns:
        Place among the selected, whether selected, and how many are.
    """
    values, edge = values.to(tl.float32), edge.to(tl.float32)
    above, tied = (values > edge).to(tl.int32), ((values == edge) & counts).to(tl.int32)
    both = above + (tied << 16)
    of_thread = tl.sum(both, 1)
    of_all = tl.sum(of_thread, 0)
    before = (tl.cumsum(of_thread, 0) - of_thread)[:, None] + _sums_before(both)
    above_before, tied_before = before & 0xFFFF, before >> 16
    room = k - (of_all & 0xFFFF)
    selected = (above != 0) | ((tied != 0) & (tied_before < room))
    return above_before + tl.minimum(tied_before, room), selected, k - room + tl.minimum(of_all >> 16, room)


@triton.jit
def _sums_before(x):
    """Sums of what lies before each number of its row, by halving and doubling: all within a thread."""
    lefts = ()
    sums = x
    for _ in tl.static_range(6):
        if sums.shape[1] > 1:
            left, right = tl.split(tl.reshape(sums, [x.shape[0], sums.shape[1] // 2, 2]))
            lefts += (left,)
            sums = left + right
    before = tl.zeros_like(sums)
    for level in tl.static_range(len(lefts)):
        left = lefts[len(lefts) - 1 - level]
        before = tl.reshape(tl.join(before, before + left), [x.shape[0], 2 * left.shape[1]])
    return before


@triton.jit
def _bounds(values, PICKED: tl.constexpr):
    """Orders between which that of the ``k``-th largest lies: from the first one on, below the second one.

    Where there are at least ``k`` groups of eight, the smallest of their maxima is not above the ``k``-th largest.
    """
    GROUPS: tl.constexpr = values.shape[0] * values.shape[1] // 8
    best = tl.max(tl.reshape(values.to(tl.float32), [values.shape[0], values.shape[1] // 8, 8]), 2)
    order = _order_of(best)
    low = _LOWEST
    if GROUPS >= PICKED:
        low = tl.maximum(tl.min(tl.min(order, 1), 0), _LOWEST)
    return low, tl.max(tl.max(order, 1), 0) + 1


@triton.jit
def _kth_largest(values, k, low, high):
    """Order of the ``k``-th largest of bfloat16 numbers without NaN, of -inf if there are fewer; by bisection.

    ``low`` and ``high`` are orders as of :func:`_bounds`.
    """
    while high - low > 1:
        middle = (low + high) >> 1
        enough = _count_at_least(values, _number_of(middle)) >= k
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    return low


@triton.jit
def _number_of(order):
    """The bfloat16 number with this place in the order of all bit patterns."""
    bits = tl.where(order >= 0x8000, order - 0x8000, 0xFFFF - order)
    return (bits << 16).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def _order_of(number):
    """The place of numbers, given as float32, in the order of bfloat16's bit patterns."""
    bits = (number.to(tl.int32, bitcast=True) >> 16) & 0xFFFF
    return tl.where(bits >= 0x8000, 0xFFFF - bits, bits + 0x8000)


@triton.jit
def _count_at_least(held, probe):
    """How many of ``held [threads, EACH]`` are at least ``probe``: two comparisons and two additions an instruction."""
    if INTERPRETED:
        return tl.sum((held.to(tl.float32) >= probe.to(tl.float32)).to(tl.int32))
    ones = tl.inline_asm_elementwise(
        _AT_LEAST, "=r,r,r", [held, tl.broadcast_to(probe, held.shape)], dtype=tl.bfloat16, is_pure=True, pack=2
    )
    for halving in tl.static_range(1, 8):
        if (held.shape[1] >> halving) >= 2:
            parts = tl.reshape(ones, [held.shape[0], 2, held.shape[1] >> halving])
            low, high = tl.split(tl.permute(parts, (0, 2, 1)))
            ones = tl.inline_asm_elementwise(_ADD, "=r,r,r", [low, high], dtype=tl.bfloat16, is_pure=True, pack=2)
    # Integers cross a warp in one instruction.
    return tl.sum(tl.sum(ones.to(tl.float32), 1).to(tl.int32), 0)
