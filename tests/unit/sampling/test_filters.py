"""Arg-max, top-k, top-p and min-p keep exactly the tokens that their definitions name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.sampling.apply_penalties import apply_penalties
from deepinfer_core.ops.sampling.apply_token_mask import apply_token_mask
from deepinfer_core.ops.sampling.finite_rows import finite_rows
from deepinfer_core.ops.sampling.greedy import greedy
from deepinfer_core.ops.sampling.process_logits import process_logits
from deepinfer_core.ops.sampling.top_logprobs import top_logprobs

INF, NAN = math.inf, math.nan


def _filtered(
    logits: list[float], temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """Probabilities after all filters."""
    numbers = [torch.tensor([value]) for value in (temperature, top_p, min_p)]
    k = torch.tensor([top_k], dtype=torch.int32)
    return process_logits(torch.tensor([logits]), numbers[0], k, numbers[1], numbers[2])[0].exp().tolist()


def _of(probabilities: list[float]) -> list[float]:
    return [math.log(p) for p in probabilities]


def _kept(probabilities: list[float]) -> list[int]:
    return [token for token, p in enumerate(probabilities) if p > 0]


def test_greedy_takes_the_lowest_id_among_equals_and_ignores_the_sign_of_zero() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [-INF, -INF, -5.0], [-INF, -INF, -INF], [NAN, 9.0, 1.0]])

    assert greedy(logits).tolist() == [1, 0, 2, 0, -1]


def test_top_k_cuts_a_tie_after_the_lowest_ids() -> None:
    assert _kept(_filtered([2.0, 5.0, 2.0, 2.0, 7.0], top_k=3)) == [0, 1, 4]


@pytest.mark.parametrize("off", [-1, 0, 5, 2**31 - 1])
def test_top_k_that_is_off_or_covers_the_vocabulary_changes_no_bit(off: int) -> None:
    logits = [0.1, -3.0, 4.0, 2.5, 0.0]

    assert _filtered(logits, top_k=off) == _filtered(logits)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.05, [1]), (0.39, [1]), (0.41, [1, 2]), (0.69, [1, 2]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_shortest_prefix_that_reaches_its_mass(top_p: float, kept: list[int]) -> None:
    assert _kept(_filtered(_of([0.1, 0.4, 0.3, 0.2]), top_p=top_p)) == kept


def test_top_p_keeps_a_token_that_comes_after_exactly_its_mass() -> None:
    assert _kept(_filtered([0.0] * 4, top_p=0.5)) == [0, 1, 2]


def test_top_p_cuts_a_tie_after_the_lowest_ids() -> None:
    assert _kept(_filtered([0.0] * 10, top_p=0.35)) == [0, 1, 2, 3]


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    probabilities = _of([0.4, 0.3, 0.2, 0.1])

    assert _kept(_filtered(probabilities, top_p=0.5)) == [0, 1]
    assert _kept(_filtered(probabilities, top_k=2, top_p=0.5)) == [0]


def test_min_p_keeps_tokens_from_its_share_of_the_best() -> None:
    assert _kept(_filtered(_of([0.5, 0.25, 0.2, 0.05]), min_p=0.45)) == [0, 1]


def test_temperature_comes_before_the_filters() -> None:
    assert _kept(_filtered(_of([0.5, 0.25, 0.25]), temperature=0.25, top_p=0.8)) == [0]


def test_the_remaining_distribution_is_normalised() -> None:
    logits = torch.randn(20, 1000, generator=torch.Generator().manual_seed(0)) * 4
    ones = torch.ones(20)

    logprobs = process_logits(logits, ones, torch.arange(1, 21).int(), ones * 0.9, ones * 0.01)

    assert torch.allclose(logprobs.exp().double().sum(-1), torch.ones(20, dtype=torch.float64), atol=1e-5)


def test_plain_probabilities_are_the_softmax() -> None:
    logits = torch.randn(8, 5000, generator=torch.Generator().manual_seed(1)) * 5

    logprobs = process_logits(logits, torch.full((8,), 0.7))

    assert torch.allclose(logprobs, (logits.double() / 0.7).log_softmax(-1).float(), atol=1e-5, rtol=1e-5)


def test_a_filter_that_only_a_neighbour_asks_for_changes_no_bit() -> None:
    logits = torch.randn(2, 700, generator=torch.Generator().manual_seed(2)) * 5
    temperature = torch.tensor([0.8, 0.8])

    alone = process_logits(logits[:1], temperature[:1])
    together = process_logits(
        logits, temperature, torch.tensor([-1, 3]).int(), torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.1])
    )

    assert torch.equal(alone[0], together[0])


def test_greedy_rows_meet_masks_and_tiny_temperatures_without_nan() -> None:
    """Case A19 of the bug reports."""
    row = torch.tensor([-INF, 6e4, -6e4, 5.9e4, -INF, 6e4])
    temperature = torch.tensor([0.0, 1e-5, 1e-4, 1.0])

    logprobs = process_logits(row.repeat(4, 1), temperature)

    assert not logprobs.isnan().any()
    assert logprobs[:, [0, 4]].eq(-INF).all()
    assert logprobs[0].tolist() == [-INF, 0.0, -INF, -INF, -INF, -INF]
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(4))


def test_rows_that_cannot_be_sampled_are_found() -> None:
    """Case A20 of the bug reports, first half."""
    logits = torch.tensor([[1.0, NAN], [1.0, INF], [-INF, -INF], [-INF, 2.0], [NAN, INF], [-INF, NAN]])

    assert finite_rows(logits).tolist() == [False, False, False, True, False, False]


def test_a_bad_row_leaves_its_neighbours_alone() -> None:
    logits = torch.tensor([[1.0, 2.0], [NAN, 2.0], [-INF, -INF]])

    logprobs = process_logits(logits, torch.ones(3))

    assert torch.equal(logprobs[:1], process_logits(logits[:1], torch.ones(1)))
    assert logprobs[1:].isnan().all()


def test_mask_bits_are_little_end_first() -> None:
    mask = torch.tensor([[0b101, 1], [-(2**31), 0]], dtype=torch.int32)

    allowed = apply_token_mask(torch.zeros(2, 34), mask).isfinite()

    assert [row.nonzero().flatten().tolist() for row in allowed] == [[0, 2, 32], [31]]


def test_penalties_follow_their_definitions() -> None:
    logits = torch.tensor([[4.0, -4.0, 4.0, -4.0, 4.0, 1.0]])
    counts = torch.tensor([[0, 0, 3, 1, 0, 0]], dtype=torch.int32)
    in_prompt = torch.tensor([[True, True, False, False, False, False]])
    factors = torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25])

    result = apply_penalties(logits, counts, in_prompt, *factors)

    assert result.tolist() == [[2.0, -8.0, 2.0 - 0.75 - 0.5, -8.0 - 0.25 - 0.5, 4.0, 1.0]]


def _report(logits: list[float], token: int, n: int) -> tuple[Tensor, ...]:
    return top_logprobs(torch.tensor([logits]), torch.tensor([token], dtype=torch.int32), n=n)


def test_reported_alternatives_are_ordered_and_ties_go_to_the_lower_id() -> None:
    logprob, rank, best, ids = _report([1.0, 2.0, 2.0, 0.0], token=2, n=3)

    expected = torch.tensor([1.0, 2.0, 2.0, 0.0]).log_softmax(-1)
    assert (rank.tolist(), ids.tolist()) == ([2], [[1, 2, 0]])
    assert torch.allclose(best[0], expected[[1, 2, 0]])
    assert torch.allclose(logprob, expected[2])


def test_the_rank_of_a_token_is_its_place_among_all() -> None:
    logits = [0.5, 3.0, 0.5, -1.0, -INF]

    assert [_report(logits, token, 0)[1].item() for token in range(5)] == [2, 1, 3, 4, 5]
