"""Chance itself: texts of the decode loop with the ops of core against the known law and against plain decoding.

One policy is one family of tests: for each of 20 seeds and for all of them together, the first three tokens of each
request against their exact law, and statistics of whole texts against those of plain texts from other random numbers.
A family stands or falls by its least p-value after Holm's adjustment. What is wrong must fall at the same threshold
with the same number of draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise

import pytest
import torch
from torch import Tensor

from deepinfer_core.ops.sampling.random import ACCEPT, DRAW, RESIDUAL
from deepinfer_core.ops.sampling.sample import sample
from deepinfer_core.ops.speculation.verify import verify
from tests.law.exact import plain_law, tables
from tests.law.policies import (
    BestNow,
    DropUnlikelyBlocks,
    EarlyStop,
    FixedBudget,
    FixedLengths,
    OlderBudget,
    Policy,
    Threshold,
)
from tests.law.stats import alike, counted, fits, holm
from tests.law.toy import RIGHT, Conduct, Decoder, Rules, World, make_world, plain
from tests.law.wrong import keyed_by_own_position, verifier

NUM_SEEDS = 20
NUM_REQUESTS = 2
NUM_GROUPS = 1000
"""Groups of requests for each seed: 40000 texts for each policy."""
MANY_GROUPS = 25000
"""A million texts for each policy."""
LEVEL = 0.01
FREE = Rules(max_tokens=5)
JUMP = (1.0, 0.5, 0.5, 0.5, 0.46, 0.46, 0.46)
"""Steps per second where the first draft costs as much as three: whether it is worth it depends on later ones."""

POLICIES: dict[str, Policy] = {
    "budget_3": FixedBudget(3),
    "older_budget": OlderBudget(JUMP),
    "early_stop": EarlyStop(),
    "threshold": Threshold(0.5),
    "all": FixedLengths(3),
}
WRONG: dict[str, tuple[Policy, Conduct]] = {
    "draft_shares_with_coin": (FixedLengths(3), Conduct(draft_numbers=keyed_by_own_position(ACCEPT))),
    "draft_shares_with_replacement": (FixedLengths(3), Conduct(draft_numbers=keyed_by_own_position(RESIDUAL))),
    "coin_shares_with_replacement": (FixedLengths(3), Conduct(verify=verifier(coin=RESIDUAL))),
    "all_share": (
        FixedLengths(3),
        Conduct(draft_numbers=keyed_by_own_position(DRAW), verify=verifier(coin=DRAW, replacement=DRAW)),
    ),
    "residual_without_subtraction": (FixedLengths(3), Conduct(verify=verifier(subtracts=False))),
    "acceptance_without_coin": (FixedLengths(3), Conduct(verify=verifier(tosses=False))),
    "best_budget_now": (BestNow(JUMP), RIGHT),
    "drop_unlikely_blocks": (DropUnlikelyBlocks(0.5), RIGHT),
}


@cache
def _world() -> World:
    """Three tokens, three drafts, everything processed with a temperature."""
    return make_world(vocab=3, gamma=3, seed=13, temperature=0.8)


@cache
def _filtered_world() -> World:
    """Eight tokens of which top-k leaves three, to the draft's taste and to the target's."""
    return make_world(vocab=8, gamma=2, seed=8, temperature=1.3, top_k=3)


def _seeds(stream: int, num_groups: int) -> Tensor:
    """Seeds ``[G, R]`` of requests, the same number of groups for each of the 20 seeds, no two of them equal."""
    each = torch.arange(NUM_SEEDS * num_groups * NUM_REQUESTS).reshape(-1, NUM_REQUESTS)
    return each * 2**32 + 1009 * stream + 1


def _longest_run(text: tuple[int, ...]) -> int:
    return max(len(list(same)) for _, same in groupby(text))


STATISTICS: dict[str, Callable[[tuple[int, ...]], int]] = {
    "number of the first token": lambda text: text.count(text[0]),
    "repeats": lambda text: sum(a == b for a, b in pairwise(text)),
    "longest run": _longest_run,
    "last two": lambda text: hash(text[-2:]),
    "sum": sum,
}


def _histograms(texts: Counter[tuple[int, ...]]) -> dict[str, Counter[int]]:
    made: dict[str, Counter[int]] = {name: Counter() for name in STATISTICS}
    for text, number in texts.items():
        for name, function in STATISTICS.items():
            made[name][function(text)] += number
    return made


def _by_seed(texts: Tensor) -> list[list[Counter[tuple[int, ...]]]]:
    """Counts of texts for each seed and request; the last row is all seeds together."""
    parts = texts.reshape(NUM_SEEDS, -1, *texts.shape[1:])
    made = [[counted(part[:, r].tolist()) for r in range(NUM_REQUESTS)] for part in parts]
    return [*made, [sum((row[r] for row in made), Counter()) for r in range(NUM_REQUESTS)]]


@cache
def _plain_texts(world: Callable[[], World], rules: Rules, num_groups: int) -> list[list[Counter[tuple[int, ...]]]]:
    return _by_seed(plain(world(), _seeds(2, num_groups), rules))


def _family(world: Callable[[], World], policy: Policy, conduct: Conduct, num_groups: int) -> tuple[float, float]:
    """The family's p-value, and the share of verified drafts that were accepted."""
    decoder = Decoder(world=world(), policy=policy, rules=FREE, conduct=conduct)
    made = _by_seed(decoder.texts(_seeds(1, num_groups)))
    laws = [plain_law(tables(world()), r, FREE, 3) for r in range(NUM_REQUESTS)]
    p_values: list[float] = []
    for drafted, simple in zip(made, _plain_texts(world, FREE, num_groups), strict=True):
        for request, law in enumerate(laws):
            first = Counter[tuple[int, ...]]()
            for text, number in drafted[request].items():
                first[text[:3]] += number
            p_values.append(fits(first, law))
            left, right = _histograms(drafted[request]), _histograms(simple[request])
            p_values += [alike(left[name], right[name]) for name in STATISTICS]
    return min(holm(p_values)), decoder.accepted / max(decoder.verified, 1)


@pytest.mark.parametrize("name", POLICIES)
def test_texts_have_the_law_of_plain_decoding(name: str) -> None:
    p, acceptance = _family(_world, POLICIES[name], RIGHT, NUM_GROUPS)

    print(f"p {p:.3g}, accepted {acceptance:.2f}")
    assert p > LEVEL
    assert 0.3 < acceptance < 0.9


@pytest.mark.parametrize("name", ["older_budget", "all"])
def test_texts_have_the_law_behind_filters(name: str) -> None:
    p, acceptance = _family(_filtered_world, POLICIES[name], RIGHT, NUM_GROUPS)

    print(f"p {p:.3g}, accepted {acceptance:.2f}")
    assert p > LEVEL


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_rejected_at_the_same_threshold(name: str) -> None:
    p, acceptance = _family(_world, *WRONG[name], NUM_GROUPS)

    print(f"p {p:.3g}, accepted {acceptance:.2f}")
    assert p < LEVEL


def test_a_confidence_that_looks_at_its_own_draft_is_rejected() -> None:
    p, _ = _family(_peeking_world, FixedBudget(3), RIGHT, NUM_GROUPS)

    print(f"p {p:.3g}")
    assert p < LEVEL


@cache
def _peeking_world() -> World:
    return replace(_world(), peeks=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_a_million_texts_have_the_law_of_plain_decoding(name: str) -> None:
    p, acceptance = _family(_world, POLICIES[name], RIGHT, MANY_GROUPS)

    print(f"p {p:.3g}, accepted {acceptance:.2f}")
    assert p > LEVEL


def test_the_wrong_verifier_is_the_op_where_it_is_not_wrong() -> None:
    """So that what the tests above reject is the fault and nothing else."""
    world, seeds = _world(), torch.arange(3000) * 2**32
    positions = torch.arange(3000, dtype=torch.int32) % 50
    draft = world.draft[positions.long() % 3, 0, positions.long() % 2]
    drafts = sample(draft, seeds, positions, purpose=9)
    drafts[::7] = -1
    rows = world.target[0, positions.long() % 3], drafts, draft, seeds, positions

    for found, expected in zip(verifier()(*rows)[:2], verify(*rows)[:2], strict=True):
        assert torch.equal(found, expected)


def test_without_drafts_the_loop_is_plain_decoding_to_the_bit() -> None:
    seeds = _seeds(3, 50)

    assert torch.equal(
        Decoder(world=_world(), policy=FixedLengths(0), rules=FREE).texts(seeds), plain(_world(), seeds, FREE)
    )
