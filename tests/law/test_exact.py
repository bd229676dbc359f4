"""Enumeration of everything that can happen: the law of the output, to the last bit of float64 (spec dspark 7.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.law.exact import (
    Enumeration,
    Kernel,
    OpKernel,
    Tables,
    formula,
    tables,
    without_coin,
    without_subtracting,
)
from tests.law.policies import (
    BestNow,
    DropUnlikelyBlocks,
    EarlyStop,
    FixedBudget,
    FixedLengths,
    LaterTiesFirst,
    OlderBudget,
    Policy,
    Threshold,
)
from tests.law.toy import Rules, World, make_world

NUM_WORLDS = 10
DENOMINATOR = 5
EXACT = 1e-12
WRONG = 1e-2
FREE = Rules(max_tokens=9)
ENDS = [
    Rules(max_tokens=3),
    Rules(max_tokens=2),
    Rules(max_tokens=9, stop=1),
    Rules(max_tokens=3, stop=1, min_tokens=1),
    Rules(max_tokens=9, stop=1, min_tokens=2),
]

RIGHT = {
    "budget_1": FixedBudget(1),
    "budget_2": FixedBudget(2),
    "budget_3": FixedBudget(3),
    "older_budget": OlderBudget(),
    "early_stop": EarlyStop(),
    "threshold": Threshold(0.5),
    "length_0": FixedLengths(0),
    "length_1": FixedLengths(1),
    "length_2": FixedLengths(2),
}
WRONG_POLICIES = {
    "best_budget_now": BestNow(),
    "drop_unlikely_blocks": DropUnlikelyBlocks(0.5),
    "later_ties_first": LaterTiesFirst(2),
}


def _worlds(*, saturated: bool = False, stop: int = -1) -> list[World]:
    """Two tokens, two drafts. Saturated confidences are 1 or one half, so that most comparisons are ties."""
    made = [make_world(vocab=2, gamma=2, order=2, seed=seed, stop=stop) for seed in range(NUM_WORLDS)]
    if not saturated:
        return made
    return [replace(world, confidence=torch.where(world.confidence > 0.4, 1.0, 0.5)) for world in made]


def _errors(policy: Policy, worlds: list[World], rules: Rules = FREE, kernel: Kernel = formula) -> list[float]:
    return [
        Enumeration(world=tables(world), policy=policy, rules=rules, horizon=3, kernel=kernel).error()
        for world in worlds
    ]  # fmt: skip


@pytest.mark.parametrize("saturated", [False, True], ids=["graded", "saturated"])
@pytest.mark.parametrize("name", RIGHT)
def test_the_joint_law_of_two_requests_is_that_of_plain_decoding(name: str, saturated: bool) -> None:
    errors = _errors(RIGHT[name], _worlds(saturated=saturated))

    print(f"largest error {max(errors):.2g} in {len(errors)} worlds")
    assert max(errors) < EXACT


@pytest.mark.parametrize("name", WRONG_POLICIES)
def test_lengths_that_depend_on_what_follows_break_the_law(name: str) -> None:
    errors = _errors(WRONG_POLICIES[name], _worlds(saturated=name == "later_ties_first"))

    print(f"largest error {max(errors):.2g}, {sum(e > WRONG for e in errors)} of {len(errors)} worlds above {WRONG}")
    assert max(errors) > WRONG


def test_a_confidence_that_looks_at_its_own_draft_breaks_the_law() -> None:
    """Even with the rules that are right otherwise; with the one that never looks nothing happens."""
    worlds = [replace(world, peeks=True) for world in _worlds()[:4]]

    errors = {name: max(_errors(RIGHT[name], worlds)) for name in ("budget_1", "early_stop", "threshold", "length_2")}

    print({name: f"{error:.2g}" for name, error in errors.items()})
    assert min(errors[name] for name in ("budget_1", "early_stop", "threshold")) > WRONG
    assert errors["length_2"] < EXACT


@pytest.mark.parametrize("kernel", [without_subtracting, without_coin])
def test_wrong_acceptance_breaks_the_law(kernel: Kernel) -> None:
    errors = _errors(FixedBudget(2), _worlds(), kernel=kernel)

    print(f"largest error {max(errors):.2g}")
    assert max(errors) > WRONG


@pytest.mark.parametrize("name", RIGHT)
def test_the_op_itself_keeps_the_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``speculation.verify`` on all combinations of its random numbers in place of the formula."""
    kernel = OpKernel(DENOMINATOR)
    monkeypatch.setattr("deepinfer_core.ops.speculation.verify.random_words", kernel.random_words)
    monkeypatch.setattr("deepinfer_core.ops.sampling.fixed_point.random_words", kernel.random_words)

    errors = [
        Enumeration(
            world=tables(world, DENOMINATOR), policy=RIGHT[name], rules=FREE, horizon=3, kernel=kernel
        ).error()
        for world in _worlds()
    ]  # fmt: skip

    print(f"largest error {max(errors):.2g}")
    assert max(errors) < EXACT


@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_the_op_is_the_formula(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = OpKernel(DENOMINATOR)
    monkeypatch.setattr("deepinfer_core.ops.speculation.verify.random_words", kernel.random_words)
    monkeypatch.setattr("deepinfer_core.ops.sampling.fixed_point.random_words", kernel.random_words)
    world = tables(make_world(vocab=vocab, gamma=2, seed=vocab), DENOMINATOR)

    for context in range(vocab):
        target, draft = world.target[0][context], world.draft[context][0][context]
        for token in range(-1, vocab):
            if token >= 0 and draft[token] == 0:
                continue
            (accept, masses), (expected, shares) = kernel(target, draft, token), formula(target, draft, token)
            assert abs(accept - expected) < EXACT
            assert max(abs(m - s) for m, s in zip(masses, shares, strict=True)) < EXACT


def test_example_of_the_paper() -> None:
    """One request, p = (0.7, 0.3), q = (0.5, 0.5): the best budget by current confidences gives (0.85, 0.15)."""
    world = Tables(
        target=[[(0.7, 0.3)] * 2] * 2,
        draft=[[[(0.5, 0.5)] * 2] * 2] * 2,
        confidence=[[[0.8, 0.8], [1.0, 0.0]]] * 2,  # the second draft is certain behind token 0, hopeless behind 1
        peeks=False,
    )
    rates = (1.0, 0.5, 0.45)

    def first_token(policy: Policy) -> float:
        law = Enumeration(world=world, policy=policy, rules=FREE, horizon=1, num_requests=1).law()
        return law[(0,),]

    assert abs(first_token(BestNow(rates)) - 0.85) < EXACT
    assert all(abs(first_token(FixedLengths(n)) - 0.7) < EXACT for n in range(3))
    assert abs(first_token(Threshold(0.9)) - 0.7) < EXACT


@pytest.mark.parametrize("rules", ENDS, ids=str)
@pytest.mark.parametrize("limited", [True, False], ids=["limited", "unlimited"])
def test_ends_of_texts_keep_the_law(rules: Rules, limited: bool) -> None:
    """Stop token, least and largest number of tokens inside a block, whether or not lengths leave room for them."""
    errors = [
        Enumeration(
            world=tables(world), policy=policy, rules=rules, horizon=min(3, rules.max_tokens), limited=limited
        ).error()
        for world in _worlds(stop=1)[:4]
        for policy in (FixedBudget(2), OlderBudget(), EarlyStop(), FixedLengths(2))
    ]  # fmt: skip

    print(f"largest error {max(errors):.2g}")
    assert max(errors) < EXACT
