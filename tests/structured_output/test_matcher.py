"""Matchers: the end, the way back, copies, replay, triggers, batches and drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_core.errors import InternalError, RequestError
from deepinfer_core.ops.sampling.apply_token_mask import apply_token_mask
from deepinfer_core.structured_output.compiler import GrammarCompiler, GrammarLimits
from deepinfer_core.structured_output.mask_rows import num_mask_words
from deepinfer_core.structured_output.masks import MaskFiller, fill_draft_masks
from deepinfer_core.structured_output.matcher import GrammarMatcher, TriggeredMatcher
from deepinfer_core.structured_outputs_params import StructuredOutputsParams
from tests.structured_output.workshop import (
    EOS,
    NUM_WORDS,
    VOCAB_SIZE,
    allowed,
    compiled,
    matcher,
    tokens_in,
    tokens_of,
    vocabulary,
    walk,
)

A, B, C = (tokens_of(letter)[0] for letter in "abc")
EVERYTHING = set(range(VOCAB_SIZE))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}


def test_a_grammar_that_ends_allows_only_the_end() -> None:
    found = matcher(regex="ab?")

    assert allowed(found) == {A}
    assert found.accept(A)
    assert allowed(found) == {B, EOS}
    assert found.accept(B)
    assert allowed(found) == {EOS}
    assert not found.is_terminated
    assert found.accept(EOS)
    assert found.is_terminated
    assert allowed(found) == EVERYTHING
    assert found.accept(C)


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 10**9, EOS, 0, 2, VOCAB_SIZE - 1])
def test_a_token_that_may_not_come_changes_nothing(token: int) -> None:
    found = matcher(regex="ab")

    assert not found.accept(token)
    assert found.error == ""
    assert found.num_tokens == 0
    assert allowed(found) == {A}


def test_rollback_is_the_inverse_of_accept() -> None:
    rng = np.random.default_rng(7)
    one = walk(matcher(json=SCHEMA), rng)
    found = matcher(json=SCHEMA)
    masks = []
    for token in [*one.tokens, EOS, C, C]:
        masks.append(allowed(found))
        assert found.accept(token)

    for num_tokens in (1, 1, 1, 3, 2):
        found.rollback(num_tokens)
        assert allowed(found) == masks[found.num_tokens]
    found.rollback(found.num_tokens)
    assert allowed(found) == masks[0]
    with pytest.raises(InternalError):
        found.rollback(1)


def test_clone_goes_its_own_way() -> None:
    found = matcher(regex="ab|ac")
    found.replay([A])
    copy = found.clone()

    assert copy.accept(B)
    assert allowed(copy) == {EOS}
    assert allowed(found) == {B, C}
    assert copy.num_tokens == found.num_tokens + 1


def test_replay_restores_the_state_of_another_matcher() -> None:
    one = walk(matcher(json=SCHEMA), np.random.default_rng(3))
    half = list(one.tokens)[: len(one.tokens) // 2]
    first, second = matcher(json=SCHEMA), matcher(json=SCHEMA)
    for token in half:
        assert first.accept(token)

    second.replay(half)

    assert allowed(first) == allowed(second)
    with pytest.raises(RequestError, match=f"token {EOS} at position 1 of the output: the grammar does not allow it"):
        matcher(regex="abc").replay([A, EOS])


def test_the_mask_is_that_of_the_op() -> None:
    found = matcher(regex="[ab]")
    masks = torch.zeros(1, NUM_WORDS, dtype=torch.int32)
    found.fill_mask(masks[0])

    logits = apply_token_mask.reference(torch.zeros(1, VOCAB_SIZE), masks)

    assert set(torch.isfinite(logits[0]).nonzero().flatten().tolist()) == {A, B}
    assert num_mask_words(VOCAB_SIZE) == NUM_WORDS == masks.shape[1]


@pytest.mark.parametrize(
    "wrong", [np.zeros(NUM_WORDS, np.int64), np.zeros(2 * NUM_WORDS, np.int32)[::2], np.zeros(1, np.int32)]
)
def test_a_row_of_another_kind_is_refused(wrong: Any) -> None:
    with pytest.raises(InternalError):
        matcher(regex="a").fill_mask(wrong)


def triggered(trigger: list[int], bound: int | None = None) -> GrammarMatcher:
    return matcher(regex="xy", trigger_token_ids=trigger, bound_token_id=bound)


def test_text_is_free_up_to_the_trigger() -> None:
    found = triggered([A, A, B])
    x = tokens_of("x")[0]

    for token in (C, A, A, A):  # the trigger overlaps with itself
        assert not found.is_constrained
        assert allowed(found) == EVERYTHING
        assert found.accept(token)
    assert found.accept(B)
    assert found.is_constrained
    assert allowed(found) == {x}
    assert not found.accept(A)


def test_the_bound_token_forces_the_rest_of_the_trigger() -> None:
    found = triggered([A, B, C], bound=EOS)

    assert found.accept(A)
    assert found.accept(B)
    assert found.accept(EOS)  # breaks the match: the trigger begins anew
    for token in (A, B, C):
        assert found.is_constrained
        assert allowed(found) == {token}
        assert not found.accept(EOS)
        assert found.accept(token)
    assert allowed(found) == {tokens_of("x")[0]}


def test_a_bound_token_within_the_trigger_counts_for_both() -> None:
    found = triggered([A, B, C], bound=B)

    found.replay([A, B])

    assert allowed(found) == {C}


def test_rollback_goes_back_through_the_trigger() -> None:
    x, y = tokens_of("x")[0], tokens_of("y")[0]
    found = triggered([A, B], bound=C)
    steps = [A, A, C, A, B, x, y, EOS]
    masks = []
    for token in steps:
        masks.append(allowed(found))
        assert found.accept(token)
    copy = found.clone()

    for at in reversed(range(len(steps))):
        found.rollback(1)
        assert allowed(found) == masks[at]
        assert found.accept(steps[at])
        found.rollback(1)
    assert copy.num_tokens == len(steps)
    copy.rollback(6)
    assert allowed(copy) == masks[2]


def test_triggers_agree_with_a_search() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        trigger = rng.integers(0, 2, size=rng.integers(1, 5)).tolist()
        text = rng.integers(0, 2, size=20).tolist()
        found = TriggeredMatcher(matcher(regex="[ab]*"), trigger)
        end = next((at for at in range(len(text) + 1) if text[:at][-len(trigger) :] == trigger), None)
        for at, token in enumerate(text):
            if end == at:
                break
            assert found.accept(token)
            assert found.is_constrained == (end == at + 1)


def test_a_batch_is_filled_like_its_rows() -> None:
    rng = np.random.default_rng(11)
    matchers: list[GrammarMatcher | None] = []
    for index in range(24):
        forms: list[GrammarMatcher | None] = [
            matcher(json=SCHEMA),
            matcher(regex="[ab]*c"),
            triggered([A]),
            triggered([A, B], bound=C),
            None,
        ]
        found = forms[index % len(forms)]
        for _ in range(int(rng.integers(0, 12)) if found else 0):
            assert found is not None
            choices = sorted(allowed(found))
            assert found.accept(C if not found.is_constrained else int(rng.choice(choices)))
        matchers.append(found)
    masks = torch.full((32, NUM_WORDS), 77, dtype=torch.int32)

    failed = MaskFiller(2).fill(matchers, masks)

    assert failed == {}
    for found, row in zip(matchers, masks.numpy(), strict=False):
        assert set(tokens_in(row).tolist()) == (allowed(found) if found else EVERYTHING)
    assert (masks[24:] == 77).all()


@pytest.mark.parametrize("wrong_at", [0, 1, 2, 3])
def test_drafts_outside_the_grammar_leave_no_trace(wrong_at: int) -> None:
    """Case A16: an illegal draft token at each position."""
    found = matcher(json={"const": [1, 2, 3]}, whitespace="none")
    found.replay(tokens_of("["))
    drafts = [tokens_of(text)[0] for text in ("1", ",", "2")]
    expected = []
    reference = found.clone()
    for token in drafts[:wrong_at]:
        expected.append(allowed(reference))
        assert reference.accept(token)
    expected.append(allowed(reference))
    if wrong_at < len(drafts):
        drafts[wrong_at] = C
    rows = np.full((len(drafts) + 1, NUM_WORDS), 77, np.int32)
    before = allowed(found)

    num_filled = fill_draft_masks(found, drafts, rows)

    assert num_filled == wrong_at + 1
    assert [set(tokens_in(row).tolist()) for row in rows[:num_filled]] == expected
    assert (rows[num_filled:] == 77).all()
    assert allowed(found) == before
    assert found.error == ""


def test_a_grammar_that_meets_a_limit_fails_alone() -> None:
    compiler = GrammarCompiler(vocabulary(), limits=GrammarLimits(step_items=30), time_limit_s=120.0)
    deep = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}
    costly = compiler.compile(
        StructuredOutputsParams(grammar="start: x\nx: x x | /a/ | /aa/ | /aaa/ | /aaaa/")
    ).matcher()
    plain = compiler.compile(StructuredOutputsParams(json=deep)).matcher()
    masks = np.zeros((2, NUM_WORDS), np.int32)
    filler = MaskFiller(2)

    while not (failed := filler.fill([costly, plain], masks)) and costly.num_tokens < 60:
        assert costly.accept(A)

    assert list(failed) == [0]
    assert "structured_outputs: " in failed[0]
    assert "<" not in failed[0]
    assert not masks[0].any()
    assert set(tokens_in(masks[1]).tolist()) == allowed(plain)
    assert not costly.accept(A)
    with pytest.raises(RequestError, match="structured_outputs: "):
        costly.fill_mask(masks[0])
    assert compiled(regex="a").warnings == ()


def test_a_limit_that_only_a_draft_meets_is_no_concern_of_the_output() -> None:
    compiler = GrammarCompiler(vocabulary(), limits=GrammarLimits(step_items=30), time_limit_s=120.0)
    rule = StructuredOutputsParams(grammar="start: x\nx: x x | /a/ | /aa/ | /aaa/ | /aaaa/")
    costly = compiler.compile(rule).matcher()
    first = costly.clone()
    rows = np.full((61, NUM_WORDS), 77, np.int32)

    num_filled = fill_draft_masks(costly, [A] * 60, rows)

    assert num_filled == 61
    assert rows[0].any()
    assert not rows[60].any()
    assert costly.error == ""
    assert costly.num_tokens == 0
    assert allowed(costly) == allowed(first)
