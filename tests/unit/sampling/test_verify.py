"""Speculation leaves the target's law as it is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.sampling.random import DRAFT, DRAW
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.speculation.accept_prefix import accept_prefix
from deepinfer_core.ops.speculation.choose_lengths import choose_lengths
from deepinfer_core.ops.speculation.verify import verify

NUM_ROWS = 20000
TARGET = [0.5, 0.2, 0.15, 0.1, 0.05, 0.0]
DRAFTS = {
    "like_the_target": TARGET,
    "flat": [1 / 6] * 6,
    "wrong": [0.01, 0.04, 0.05, 0.1, 0.3, 0.5],
    "disjoint": [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
}


def _rows(probabilities: list[float], num_rows: int = NUM_ROWS) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log().float().repeat(num_rows, 1)


def _seeds(num_rows: int = NUM_ROWS) -> Tensor:
    return torch.full((num_rows,), -123456789)


def _positions(num_rows: int = NUM_ROWS) -> Tensor:
    return torch.arange(num_rows, dtype=torch.int32)


def _misfit(tokens: Tensor, probabilities: list[float]) -> float:
    """Chi-square against the law; infinite when an impossible token appears."""
    counts, expected = torch.bincount(tokens, minlength=6).double(), torch.tensor(probabilities).double() * len(tokens)
    if counts[expected == 0].sum() > 0:
        return math.inf
    possible = expected > 0
    return float(((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum())


@pytest.mark.parametrize("name", DRAFTS)
def test_tokens_have_the_law_of_the_target_whatever_the_draft(name: str) -> None:
    draft = _rows(DRAFTS[name])
    drafts = sample(draft, _seeds(), _positions(), purpose=DRAFT)

    accepted, tokens, expected = verify(_rows(TARGET), drafts, draft, _seeds(), _positions())

    overlap = sum(min(p, q) for p, q in zip(TARGET, DRAFTS[name], strict=True))
    assert _misfit(tokens, TARGET) < 24  # chi-square of 4 degrees of freedom, chance 1e-4
    assert abs(accepted.double().mean() - overlap) < 4 * math.sqrt(0.25 / NUM_ROWS)
    assert torch.allclose(expected, torch.tensor(overlap), atol=1e-5)


def test_drafts_chosen_without_chance_keep_the_law_too() -> None:
    drafts = torch.full((NUM_ROWS,), 1, dtype=torch.int32)

    accepted, tokens, expected = verify(_rows(TARGET), drafts, None, _seeds(), _positions())

    assert _misfit(tokens, TARGET) < 24
    assert abs(accepted.double().mean() - TARGET[1]) < 0.015
    assert torch.allclose(expected, torch.tensor(TARGET[1]))


def test_shared_noise_would_be_noticed() -> None:
    """The draft drawn with the replacement's numbers breaks the law: the test above can fail."""
    draft = _rows(DRAFTS["flat"])
    drafts = sample(draft, _seeds(), _positions(), purpose=1)

    _, tokens, _ = verify(_rows(TARGET), drafts, draft, _seeds(), _positions())

    assert _misfit(tokens, TARGET) > 100


def test_a_row_without_a_draft_is_a_plain_draw() -> None:
    none = torch.full((500,), -1, dtype=torch.int32)

    accepted, tokens, expected = verify(
        _rows(TARGET, 500), none, _rows(DRAFTS["wrong"], 500), _seeds(500), _positions(500)
    )

    assert not accepted.any()
    assert torch.equal(tokens, sample(_rows(TARGET, 500), _seeds(500), _positions(500), purpose=DRAW))
    assert expected.eq(1).all()


def test_a_greedy_row_accepts_exactly_the_most_likely_token() -> None:
    one_hot = _rows([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 600)
    drafts = torch.arange(600, dtype=torch.int32) % 6

    for draft_logprobs in (_rows(DRAFTS["flat"], 600), _rows([1e-6, 1e-6, 1 - 5e-6, 1e-6, 1e-6, 1e-6], 600), None):
        accepted, tokens, _ = verify(one_hot, drafts, draft_logprobs, _seeds(600), _positions(600))

        assert torch.equal(accepted, drafts == 2)
        assert tokens.eq(2).all()


def test_a_draft_that_the_target_forbids_is_rejected_and_never_drawn() -> None:
    drafts = torch.full((3000,), 5, dtype=torch.int32)

    accepted, tokens, _ = verify(
        _rows(TARGET, 3000), drafts, _rows(DRAFTS["disjoint"], 3000), _seeds(3000), _positions(3000)
    )

    assert not accepted.any()
    assert not tokens.eq(5).any()


def test_equal_distributions_up_to_rounding_accept_and_never_run_dry() -> None:
    target = torch.randn(2000, 50, generator=torch.Generator().manual_seed(4)).log_softmax(-1)
    nudged = target + (torch.randint(-4, 5, target.shape, generator=torch.Generator().manual_seed(5)) * 2**-23)
    drafts = sample(nudged, _seeds(2000), _positions(2000), purpose=DRAFT)

    accepted, tokens, _ = verify(target, drafts, nudged, _seeds(2000), _positions(2000))

    assert accepted.double().mean() > 0.999
    assert tokens.ge(0).all()


def test_a_rejected_row_without_residual_draws_from_the_target() -> None:
    impossible = torch.full((NUM_ROWS,), 5, dtype=torch.int32)

    accepted, tokens, _ = verify(_rows(TARGET), impossible, _rows(TARGET), _seeds(), _positions())

    assert not accepted.any()
    assert _misfit(tokens, TARGET) < 24


def test_only_the_leading_accepted_drafts_stand() -> None:
    flags = torch.tensor([[True, True, False, True], [False, True, True, True], [True, True, True, True]])
    first = torch.tensor([0, 5, 10], dtype=torch.int32)

    num_accepted, last_row = accept_prefix(flags, first)

    assert (num_accepted.tolist(), last_row.tolist()) == ([2, 0, 4], [2, 5, 14])


def _lengths(confidence: list[list[float]], limits: list[int], budget: int) -> list[int]:
    numbers = torch.tensor(limits, dtype=torch.int32), torch.tensor([budget], dtype=torch.int32)
    return choose_lengths(torch.tensor(confidence), *numbers).tolist()


def test_the_budget_goes_to_the_likeliest_prefixes() -> None:
    confidence = [[0.9, 0.9, 0.1], [0.5, 1.0, 1.0], [0.85, 0.2, 1.0]]

    assert [_lengths(confidence, [3, 3, 3], budget) for budget in range(7)] == [
        [0, 0, 0], [1, 0, 0], [1, 0, 1], [2, 0, 1], [2, 1, 1], [2, 2, 1], [2, 3, 1],
    ]  # fmt: skip


def test_ties_take_earlier_drafts_before_later_ones() -> None:
    assert _lengths([[1.0, 1.0]] * 3, [2, 2, 2], 4) == [2, 1, 1]


def test_no_sequence_gets_more_than_its_limit() -> None:
    assert _lengths([[1.0, 1.0, 1.0], [0.1, 0.1, 0.1]], [1, 2], 100) == [1, 2]
