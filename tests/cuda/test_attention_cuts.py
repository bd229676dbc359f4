"""How decode rows are spread over programs."""

from __future__ import annotations

import pytest

from deepinfer_cuda.attention_cuts import attention_cut, part_blocks


@pytest.mark.parametrize("rows", [1, 6, 13, 26, 64])
def test_parts_of_few_rows_all_run_at_once(rows: int) -> None:
    blocks = attention_cut("decode", 64).blocks(128, 512)

    part = part_blocks(rows, blocks)

    assert part < blocks
    assert rows * -(-blocks // part) <= 132


@pytest.mark.parametrize("rows", [67, 256, 1536])
def test_many_rows_are_not_divided(rows: int) -> None:
    blocks = attention_cut("decode", 64).blocks(128, 512)

    part = part_blocks(rows, blocks)

    assert part == blocks


def test_a_single_block_is_not_divided() -> None:
    assert part_blocks(1, 1) == 1


@pytest.mark.parametrize(("num_heads", "heads", "programs"), [(4, 16, 1), (64, 64, 1), (96, 64, 2), (128, 64, 2)])
def test_heads_fill_the_rows_of_a_matrix_product(num_heads: int, heads: int, programs: int) -> None:
    cut = attention_cut("decode", num_heads)

    assert (cut.heads, cut.head_programs(num_heads)) == (heads, programs)
