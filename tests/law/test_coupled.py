"""Deterministic mode (spec dspark 7.4): target and draft draw token n with the same random numbers.

The text is what the target draws, whatever is drafted and however much of it is verified: even lengths that look at
everything change nothing. What is left to chance is how many drafts are equal to what the target draws: with races at
least (1 - TV) / (1 + TV) of them, with the inverse CDF of ``sampling.sample`` far fewer where the vocabulary is large.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.sampling.race import race
from deepinfer_core.ops.sampling.random import DRAW
from deepinfer_core.ops.sampling.sample import sample
from tests.law.policies import (
    BestNow,
    DropUnlikelyBlocks,
    EarlyStop,
    Erratic,
    FixedBudget,
    FixedLengths,
    OlderBudget,
    Policy,
    Threshold,
)
from tests.law.toy import Conduct, Decoder, Drawer, Rules, make_world, plain
from tests.law.wrong import keyed_by_own_position

SCHEDULES: list[Policy] = [
    *(FixedLengths(length) for length in range(6)),
    *(FixedBudget(budget) for budget in (1, 3, 6)),
    *(Erratic(seed) for seed in range(4)),
    OlderBudget(),
    EarlyStop(),
    Threshold(0.5),
    BestNow((1.0, 0.7, 0.68, 0.66, 0.52, 0.5, 0.49, 0.48, 0.45, 0.44, 0.43)),
    DropUnlikelyBlocks(0.3),
]


def judge_coupled(
    target: Tensor, drafts: Tensor, draft_logprobs: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A draft stands when the target draws it."""
    tokens = race(target, seeds, positions, purpose=DRAW)
    return tokens == drafts, tokens, torch.ones(len(drafts))


COUPLED = Conduct(verify=judge_coupled, draft_numbers=keyed_by_own_position(DRAW), draw=race)


@pytest.mark.parametrize("gamma", range(6))
def test_texts_are_those_of_plain_decoding_to_the_bit(gamma: int) -> None:
    seeds = torch.randint(-(2**63), 2**63 - 1, (80, 2), generator=torch.Generator().manual_seed(gamma))
    rules = Rules(max_tokens=12, stop=2, min_tokens=4)
    world = make_world(vocab=3, gamma=max(gamma, 1), seed=20 + gamma, stop=2)
    expected = plain(world, seeds, rules, race)

    for policy in SCHEDULES if gamma else [FixedLengths(0)]:
        decoder = Decoder(world=world, policy=policy, rules=rules, conduct=COUPLED)

        assert torch.equal(decoder.texts(seeds), expected), policy


NUM_DRAWS = 4000


def _pairs(vocab: int, noise: float, num: int = 40) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(vocab)
    logits = torch.randn(num, vocab, generator=source, dtype=torch.float64) * 2
    return logits.softmax(-1), (logits + noise * torch.randn(logits.shape, generator=source)).softmax(-1)


def coupling(p: Tensor, q: Tensor) -> Tensor:
    """Chance that both draw one token when the same number inverts both distributions: the overlap of each token's
    interval in one with its interval in the other."""
    upper_p, upper_q = p.cumsum(-1), q.cumsum(-1)
    overlap = torch.minimum(upper_p, upper_q) - torch.maximum(upper_p - p, upper_q - q)
    return overlap.clamp(min=0).sum(-1)


def race_coupling(p: Tensor, q: Tensor) -> Tensor:
    """The same for exponential races (Gumbel noise shared by token): sum over v of 1 / sum over w of
    max(p_w / p_v, q_w / q_v)."""
    ratio = torch.maximum(p.unsqueeze(-2) / p.unsqueeze(-1), q.unsqueeze(-2) / q.unsqueeze(-1))
    return (1 / ratio.sum(-1)).sum(-1)


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("vocab", [2, 8, 64, 512])
def test_acceptance_against_the_best_that_any_coupling_can_do(vocab: int, noise: float) -> None:
    p, q = _pairs(vocab, noise)
    overlap = torch.minimum(p, q).sum(-1)
    bound = overlap / (2 - overlap)  # (1 - TV) / (1 + TV)
    inverse, gumbel = coupling(p, q), race_coupling(p, q)

    means = [float(x.mean()) for x in (overlap, inverse, gumbel, bound)]
    print("1-TV {:.3f}, inverse CDF {:.3f}, Gumbel {:.3f}, bound {:.3f}".format(*means))
    print(f"inverse CDF below the bound in {int((inverse < bound - 1e-12).sum())} of {len(p)} pairs")
    assert (inverse <= overlap + 1e-12).all()
    assert (gumbel <= overlap + 1e-12).all()
    assert (gumbel >= bound - 1e-12).all()


def _same(draw: Drawer, p: Tensor, q: Tensor, seed: int) -> float:
    """How often both distributions draw one token with the same numbers."""
    seeds, positions = torch.full((NUM_DRAWS,), seed), torch.arange(NUM_DRAWS, dtype=torch.int32)
    drawn = [draw(x.log().float().expand(NUM_DRAWS, -1), seeds, positions, purpose=DRAW) for x in (p, q)]
    return float((drawn[0] == drawn[1]).double().mean())


def _sigma(chance: Tensor) -> float:
    return float((chance * (1 - chance) / NUM_DRAWS).sqrt())


@pytest.mark.parametrize("vocab", [2, 8, 64])
def test_inverse_cdf_accepts_as_often_as_intervals_overlap(vocab: int) -> None:
    p, q = _pairs(vocab, 0.3, num=4)
    expected = coupling(p, q)

    for row in range(len(p)):
        assert abs(_same(sample, p[row], q[row], 77 + row) - expected[row]) < 4 * _sigma(expected[row]) + 1e-3


@pytest.mark.parametrize("noise", [0.3, 1.0])
@pytest.mark.parametrize("vocab", [2, 8, 64, 512])
def test_races_accept_as_often_as_they_should_and_never_less_than_the_bound(vocab: int, noise: float) -> None:
    p, q = _pairs(vocab, noise, num=3)
    expected, overlap = race_coupling(p, q), torch.minimum(p, q).sum(-1)
    bound = overlap / (2 - overlap)

    for row in range(len(p)):
        seen = _same(race, p[row], q[row], 77 + row)

        print(f"races {seen:.3f}, expected {float(expected[row]):.3f}, bound {float(bound[row]):.3f}")
        assert abs(seen - expected[row]) < 4 * _sigma(expected[row]) + 1e-3
        assert seen > bound[row] - 3 * _sigma(bound[row])


def test_order_of_ids_can_cost_inverse_cdf_everything() -> None:
    """A little mass that moves from the first token to the last shifts every interval between them."""
    num, shift = 1000, 1e-3
    p = torch.full((1, num), 1 / num, dtype=torch.float64)
    q = p.clone()
    q[0, 0] -= shift * 0.999
    q[0, -1] += shift * 0.999

    assert float(torch.minimum(p, q).sum()) > 0.998
    assert float(coupling(p, q)) < 0.01
    assert float(race_coupling(p, q)) > 0.997
