"""Scores, selection and candidate blocks against plain readings of spec attention/03."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.cases import Draw
from deepinfer_core.ops.indexer.index_scores import draw_index_step, index_scores
from deepinfer_core.ops.indexer.select_entries import select_entries, select_within_candidates
from deepinfer_core.ops.indexer.top_k import block_maximum, top_k
from deepinfer_core.ops.quantize.rounding import dequantize_values
from deepinfer_core.tensor import Cache, QuantTensor

STARTS, LENGTHS = (0, 9, 40), (12, 20, 4)
SIZES = {"T": sum(LENGTHS), "B": 3, "J": 6, "P": 8, "X": 4, "D": 64, "M": 19}
K, BLOCK = 6, 4


def inputs(dtype: str = "bf16") -> dict[str, Any]:
    """Rows of three sequences with random queries, weights and keys in shuffled blocks."""
    return draw_index_step(STARTS, LENGTHS)(Draw("selection", SIZES, dtype))


def best(scores: list[float], count: int) -> list[int]:
    """Numbers of the largest scores, the smaller number among equals, ascending."""
    return sorted(sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:count])


def padded(numbers: list[int], width: int) -> list[int]:
    return numbers + [-1] * (width - len(numbers))


def tied_scores(rows: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Few distinct scores, zeros of both signs among them, and lengths from 0 to the width."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 3, (rows, width), generator=generator).bfloat16() * 0.5
    scores[:, ::7] = -0.0
    return scores, torch.randint(0, width + 1, (rows,), generator=generator, dtype=torch.int32)


def test_selection_takes_larger_scores_and_among_equals_smaller_numbers() -> None:
    scores, lengths = tied_scores(60, 50)

    found = top_k(scores, lengths, k=9)

    for row, length in enumerate(lengths.tolist()):
        assert found[row].tolist() == padded(best(scores[row, :length].tolist(), 9), 9)


def test_a_row_of_no_more_than_k_entries_selects_all_whatever_the_scores() -> None:
    scores = torch.full((5, 30), -torch.inf).bfloat16()
    scores[:, 20:] = torch.nan
    lengths = torch.tensor([0, 1, 7, 8, 20], dtype=torch.int32)

    found = top_k(scores, lengths, k=20)

    assert [row.tolist() for row in found] == [padded(list(range(n)), 20) for n in lengths.tolist()]


def test_selection_does_not_depend_on_width_padding_or_company() -> None:
    scores, lengths = tied_scores(40, 50, seed=1)
    garbage = torch.full((40, 30), torch.nan, dtype=torch.bfloat16)

    expected = top_k(scores, lengths, k=9)

    assert torch.equal(top_k(torch.cat((scores, garbage), 1), lengths, k=9), expected)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    assert torch.equal(top_k(scores[order], lengths[order], k=9), expected[order])
    assert torch.equal(torch.cat([top_k(scores[r : r + 1], lengths[r : r + 1], k=9) for r in range(40)]), expected)


def selection(made: dict[str, Any], score_mode: str = "fma_chain", **changes: Any) -> tuple[Tensor, Tensor]:
    """Entries and all candidate blocks that fit 3."""
    settings = {"k": K, "candidate_blocks": 3, "candidate_block_size": BLOCK, "score_mode": score_mode, **changes}
    entries, candidates = select_entries(**made, **settings)
    assert candidates is not None
    return entries, candidates


@pytest.mark.parametrize("score_mode", ["fma_chain", "wide"])
def test_selected_entries_are_the_best_of_the_scores(score_mode: str) -> None:
    made = inputs("f32" if score_mode == "wide" else "bf16")
    scores = index_scores(**made, score_mode=score_mode)

    entries, _ = selection(made, score_mode)

    for row, visible in enumerate(made["visible"].tolist()):
        assert entries[row].tolist() == padded(best(scores[row, :visible].tolist(), K), K)


def test_wide_scores_are_weighed_sums_of_positive_dot_products() -> None:
    made = inputs("f64")
    query, keys = dequantize_values(made["query"], torch.float64), made["keys"]

    scores = index_scores(**made, score_mode="wide")

    every = dequantize_values(_all_records(keys), torch.float64)
    for row, (sequence, visible) in enumerate(
        zip(made["row_sequence"].tolist(), made["visible"].tolist(), strict=True)
    ):
        own = torch.cat([every[block] for block in made["block_table"][sequence].tolist()])[:visible]
        expected = (torch.relu(own @ query[row].T) * made["head_weights"][row]).sum(-1)
        torch.testing.assert_close(scores[row, :visible], expected, rtol=1e-12, atol=1e-12)
        assert scores[row, visible:].eq(-torch.inf).all()


def _all_records(keys: Cache) -> QuantTensor:
    """Codes and scales of every block: all codes first, then all scales."""
    codes = keys.rows_per_block * keys.width // 2
    data = keys.storage[:, :codes].unflatten(1, (keys.rows_per_block, -1))
    return QuantTensor(data, keys.storage[:, codes:].unflatten(1, (keys.rows_per_block, -1)), keys.format)


@pytest.mark.parametrize("score_mode", ["fma_chain", "wide"])
@pytest.mark.parametrize("factor", [2.0**-6, 2.0**5])
def test_a_power_of_two_on_all_weights_changes_no_selection(score_mode: str, factor: float) -> None:
    """So the factor ``1 / sqrt(heads x width)``, 1/64 in the release, may be applied or left out."""
    made = inputs()
    expected = selection(made, score_mode)

    found = selection({**made, "head_weights": made["head_weights"] * factor}, score_mode)

    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_entries_that_a_row_does_not_see_never_matter() -> None:
    """Keys behind the newest row of each sequence and in the dummy block have scales that are not numbers."""
    made = inputs()
    expected = selection(made)
    codes = made["keys"].rows_per_block * made["keys"].width // 2

    for sequence, end in enumerate(s + n for s, n in zip(STARTS, LENGTHS, strict=True)):
        for entry in range(end, SIZES["J"] * SIZES["P"]):
            block, row = int(made["block_table"][sequence, entry // 8]), entry % 8
            made["keys"].storage[block, codes + 2 * row : codes + 2 * row + 2] = 0xFF
    made["keys"].storage[0] = 0xFF

    found = selection(made)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_earlier_row_does_not_see_what_a_later_row_sees() -> None:
    made = inputs()
    expected, _ = selection(made)
    codes, block = made["keys"].rows_per_block * made["keys"].width // 2, int(made["block_table"][0, 0])

    made["keys"].storage[block, codes + 2 * 5 : codes + 2 * 6] = 140
    found, _ = selection(made)

    assert torch.equal(found[:5], expected[:5]), "rows that see entries 0 .. 4"
    assert not torch.equal(found[5:12], expected[5:12])


@pytest.mark.parametrize("score_mode", ["fma_chain", "wide"])
def test_physical_blocks_and_prefill_form_change_no_score(score_mode: str) -> None:
    made = inputs()
    expected = index_scores(**made, score_mode=score_mode)
    order = torch.randperm(SIZES["M"] - 1, generator=torch.Generator().manual_seed(3)) + 1
    moved = made["keys"].storage.clone()
    moved[order] = made["keys"].storage[1:]
    table = order[(made["block_table"] - 1).long()].int()
    relabelled = {**made, "keys": Cache(moved, "mxfp4", 64, 8, sectioned=True), "block_table": table}

    assert torch.equal(index_scores(**relabelled, score_mode=score_mode), expected)
    prompt = index_scores(**made, score_mode=score_mode, query_lengths=LENGTHS)
    torch.testing.assert_close(prompt, expected, rtol=2**-7, atol=2**-7)


def test_candidates_are_the_best_blocks_and_always_the_newest() -> None:
    made = inputs()
    scores = index_scores(**made, score_mode="fma_chain")

    _, candidates = selection(made)

    for row, visible in enumerate(made["visible"].tolist()):
        blocks = -(-visible // BLOCK)
        maxima = [max(scores[row, BLOCK * b : min(BLOCK * (b + 1), visible)].tolist()) for b in range(blocks)]
        expected = best([*maxima[:-1], float("inf")], 3)
        assert candidates[row].tolist() == padded(expected, 3)
        assert blocks - 1 in candidates[row].tolist()


def test_block_maxima_ignore_what_is_not_visible() -> None:
    scores = torch.tensor([[1.0, 2.0, 9.0, torch.nan, 5.0, 6.0]]).bfloat16()

    maxima, blocks = block_maximum(scores, torch.tensor([2], dtype=torch.int32), block_size=2)

    assert maxima.tolist() == [[torch.inf, -torch.inf, -torch.inf]]
    assert blocks.tolist() == [1]


def test_selection_within_candidates_is_the_dense_one_over_their_entries() -> None:
    made = inputs()
    scores = index_scores(**made, score_mode="fma_chain")
    _, candidates = selection(made)

    found = select_within_candidates(
        **made, candidates=candidates, score_mode="fma_chain", k=K, candidate_block_size=BLOCK
    )

    pruned = 0
    for row, visible in enumerate(made["visible"].tolist()):
        allowed = [j for j in range(visible) if j // BLOCK in candidates[row].tolist()]
        picked = [allowed[i] for i in best([float(scores[row, j]) for j in allowed], K)]
        assert found[row].tolist() == padded(picked, K)
        pruned += len(allowed) < visible
    assert pruned > 10


def test_candidates_that_cover_everything_change_nothing() -> None:
    made = inputs()
    entries, candidates = selection(made, candidate_blocks=SIZES["J"] * SIZES["P"] // BLOCK)

    within = select_within_candidates(
        **made, candidates=candidates, score_mode="fma_chain", k=K, candidate_block_size=BLOCK
    )

    assert torch.equal(within, entries)
