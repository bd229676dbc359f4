"""A prefix that is found in the cache brings what the draft module reads, too: as many drafts are accepted (B3)."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core import SamplingParams
from deepinfer_core.engine.engine import Engine
from tests.engine.drafting import Asked, Tally, finish, heldout_prompts, model, shown, start

PREFIX = 256
"""Tokens that all prompts share: two cache blocks."""


def asked(accelerator: str, count: int) -> Asked:
    questions = heldout_prompts(accelerator, 60)
    shared = [token for ids in questions for token in ids][:PREFIX]
    return {
        str(number): (shared + ids, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True))
        for number, ids in enumerate(questions[40 : 40 + count])
    }


def acceptance(engine: Engine, requests: Asked) -> tuple[float, Any]:
    """Share of accepted drafts and the answers; one request runs first and leaves the prefix."""
    tally = Tally().watch(engine)
    first, *rest = requests
    found = finish(engine, {first: requests[first]}) | finish(engine, {key: requests[key] for key in rest})
    return tally.accepted / tally.verified, shown(found)


@pytest.mark.parametrize("coupled", [True, False])
def test_an_exact_hit_accepts_the_same_drafts(accelerator: str, coupled: bool) -> None:
    requests = asked(accelerator, 4)
    cold = acceptance(start(model(accelerator, coupled=coupled)), requests)
    engine = start(model(accelerator, coupled=coupled), prefix_cache="exact")

    warm = acceptance(engine, requests)

    assert engine.scheduler.prefix_cache.counters.num_hit_tokens == 3 * PREFIX
    assert warm == cold


def test_a_replayed_hit_accepts_as_many_drafts(accelerator: str) -> None:
    """The last window of the hit passes the target again, so that its features are there."""
    requests = asked(accelerator, 14)
    cold, _ = acceptance(start(model(accelerator)), requests)
    engine = start(model(accelerator), prefix_cache="bounded", prefix_snapshots=0)

    warm, _ = acceptance(engine, requests)

    assert engine.scheduler.prefix_cache.counters.num_hit_tokens > 0
    assert warm == pytest.approx(cold, abs=0.02)
    assert cold > 0.15


def test_a_conversation_goes_on_behind_accepted_drafts(accelerator: str) -> None:
    """Blocks that drafts have filled are found by the next turn, and hold what a cold run computes."""
    prompt = [5 + (place * 7) % 900 for place in range(200)]
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    short = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
    engine = start(model(accelerator), prefix_cache="bounded", prefix_snapshots=0)
    answer = finish(engine, {"a": (prompt, params)})["a"].outputs[0].token_ids
    turn: Asked = {"b": ([*prompt, *answer, 11, 12], short)}
    plain = start(model(accelerator, 0), prefix_cache="bounded", prefix_snapshots=0)
    assert finish(plain, {"a": (prompt, params)})["a"].outputs[0].token_ids == answer

    found, expected = finish(engine, turn), finish(plain, turn)

    assert found["b"].metrics is not None
    assert found["b"].metrics.num_cached_tokens == expected["b"].metrics.num_cached_tokens > 0  # type: ignore[union-attr]
    assert shown(found) == shown(expected)
