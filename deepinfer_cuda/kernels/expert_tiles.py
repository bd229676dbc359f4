"""Which tile of rows and which block of channels a program of a grouped product works on.

The programs of the shared expert come first: they take longest. Its tiles are tiles of the step's rows; those of the
routed experts are in the list that ``sort_experts`` makes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def num_shared_programs(num_rows, CHANNELS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Programs that work for the shared expert, which makes so many result channels (0: there is none)."""
    return tl.cdiv(num_rows, BLOCK_M) * tl.cdiv(CHANNELS, BLOCK_N)


@triton.jit
def shared_tile(
    program, num_rows, CHANNELS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr
):
    """First row, one past the last row, and block of a program of the shared expert."""
    tile, block = _grouped(program, tl.cdiv(num_rows, BLOCK_M), tl.cdiv(CHANNELS, BLOCK_N), GROUP)
    begin = tile * BLOCK_M
    return begin, tl.minimum(begin + BLOCK_M, num_rows), block


@triton.jit
def expert_tile(tiles_ptr, program, num_tiles, CHANNELS: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Expert (-1: nothing to do), first place, one past the last, and block of a program of the routed experts."""
    tile, block = _grouped(program, num_tiles, tl.cdiv(CHANNELS, BLOCK_N), GROUP)
    expert = tl.load(tiles_ptr + tile)
    begin = tl.load(tiles_ptr + num_tiles + tile)
    end = tl.load(tiles_ptr + 2 * num_tiles + tile)
    return expert, begin, end, block


@triton.jit
def places(begin, end, BLOCK_M: tl.constexpr):
    """Places of a tile (int64), which of them are below its end, and places to load from.

    The last are those of the tile, with its last one again for each that is beyond: so loads of a loop need no mask.
    """
    place = begin + tl.arange(0, BLOCK_M)
    return place.to(tl.int64), place < end, tl.minimum(place, end - 1).to(tl.int64)


@triton.jit
def has_tail(num_rows, number: tl.constexpr, FIRST_M: tl.constexpr, TAILS: tl.constexpr):
    """Whether a tile with so many rows is worked on with tail ``number`` of ``TAILS``, which begin with 0 and grow."""
    FEWER: tl.constexpr = FIRST_M + TAILS[number - 1] if number > 0 else 0
    return (num_rows > FEWER) & (num_rows <= FIRST_M + TAILS[number])


@triton.jit
def _grouped(program, num_tiles, num_blocks, GROUP: tl.constexpr):
    """Tile and block: groups of tiles, in a group block by block, in a block tile by tile."""
    group = program // (GROUP * num_blocks)
    size = tl.minimum(num_tiles - group * GROUP, GROUP)
    within = program - group * (GROUP * num_blocks)
    return group * GROUP + within % size, within // size
