"""Ends of texts inside a block: stop token, ``min_tokens`` and ``max_tokens`` row by row, through the ops of core."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from tests.law.exact import plain_law, tables
from tests.law.policies import FixedBudget, FixedLengths, OlderBudget, Policy
from tests.law.stats import counted, fits, holm
from tests.law.toy import NO_TOKEN, RIGHT, Conduct, Decoder, Rules, World, make_world, plain

NUM_GROUPS = 10000
NUM_SEEDS = 20
LEVEL = 0.01
STOP = 2

RULES = [
    Rules(max_tokens=5, stop=STOP),
    Rules(max_tokens=5, stop=STOP, min_tokens=2),
    Rules(max_tokens=3, stop=STOP, min_tokens=3),
    Rules(max_tokens=2, stop=STOP, min_tokens=1),
    Rules(max_tokens=1),
]
POLICIES: dict[str, Policy] = {"budget_3": FixedBudget(3), "older_budget": OlderBudget(), "all": FixedLengths(3)}
WRONG = {
    "tokens_behind_the_end_count": Conduct(stops_in_order=False),
    "only_the_first_row_is_masked": Conduct(masks_every_row=False),
}


@cache
def _world() -> World:
    return make_world(vocab=3, gamma=3, seed=13, stop=STOP)


def _seeds() -> Tensor:
    return torch.arange(2 * NUM_GROUPS).reshape(-1, 2) * 2**32 + 4711


def _family(texts: Tensor, rules: Rules) -> float:
    """Whole texts of each request against their law: for each part of the texts and for all of them."""
    laws = [plain_law(tables(_world()), r, rules, rules.max_tokens) for r in range(2)]
    parts = [*texts.chunk(NUM_SEEDS), texts]
    found = [
        fits(counted([t for t in text if t != NO_TOKEN] for text in part[:, r].tolist()), laws[r])
        for part in parts
        for r in range(2)
    ]
    return min(holm(found))


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_plain_texts_have_the_law(rules: Rules) -> None:
    p = _family(plain(_world(), _seeds(), rules), rules)

    print(f"p {p:.3g}")
    assert p > LEVEL


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("name", POLICIES)
def test_whole_texts_have_the_law_of_plain_decoding(name: str, rules: Rules) -> None:
    texts = Decoder(world=_world(), policy=POLICIES[name], rules=rules).texts(_seeds())

    p = _family(texts, rules)
    print(f"p {p:.3g}")
    assert p > LEVEL


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_rejected_at_the_same_threshold(name: str) -> None:
    rules = RULES[1]

    p = _family(
        Decoder(world=_world(), policy=FixedLengths(3), rules=rules, conduct=WRONG[name]).texts(_seeds()), rules
    )

    print(f"p {p:.3g}")
    assert p < LEVEL


def test_texts_end_where_the_rules_say() -> None:
    """No token behind a stop token, none before ``min_tokens``, and never more than ``max_tokens``."""
    for rules in RULES:
        texts = Decoder(world=_world(), policy=FixedLengths(3), rules=rules, conduct=RIGHT).texts(_seeds()[:1000])
        for text in texts.reshape(-1, rules.max_tokens).tolist():
            kept = [token for token in text if token != NO_TOKEN]
            assert text == kept + [NO_TOKEN] * (rules.max_tokens - len(kept))
            assert rules.stop not in kept[:-1]
            assert len(kept) == rules.max_tokens or (kept[-1] == rules.stop and len(kept) > rules.min_tokens)
