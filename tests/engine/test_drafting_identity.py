"""Drafts change no token: not how many, not how many are verified, not in which company and order (claims C12, C13).

In batch-invariant mode a row of a block has the bits of a single one, so that greedy tokens are those of plain decoding
to the last bit of their log-probabilities. Coupled drafts keep that promise at any temperature.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache

import pytest

from deepinfer_core import LLM, RequestOutput, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.scheduler.step_plan import StepPlan
from tests.engine.drafting import (
    BLOCK,
    BLOCK_BYTES,
    Asked,
    Tally,
    finish,
    heldout_prompts,
    in_spells,
    model,
    random_lengths,
    same_as_plain,
    shown,
    start,
)

KINDS = [
    {"temperature": 0.0, "ignore_eos": True, "logprobs": 2},
    {"temperature": 1.0, "seed": 5, "ignore_eos": True, "logprobs": 0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "seed": 1},
    {"temperature": 0.0, "stop": ["3", "e "]},
    {"temperature": 1.0, "top_k": 20, "min_tokens": 5, "seed": 2},
    {"temperature": 1.0, "min_p": 0.05, "n": 2, "seed": 9},
    {"temperature": 0.0, "prompt_logprobs": 1, "presence_penalty": 0.5},
    {"temperature": 1.0, "bad_words": ["a", " the"], "seed": 4},
]
SETTINGS: dict[str, dict[str, object]] = {
    "as_usual": {},
    "mixed": {"step_policy": "mixed", "max_chunk_tokens": 16},
    "small_chunks": {"max_num_batched_tokens": 24},
    "preempted": {"kv_cache_memory_gib": 5 * BLOCK_BYTES / 2**30, "headroom_blocks": 0},
    "prefix_hits": {"prefix_cache": "exact", "max_num_seqs": 4},
    "other_neighbours": {"max_num_seqs": 3},
}
PADDING = [5 + place % 900 for place in range(235)]
"""In front of prompts, half of it or all: answers grow into another block, and requests share a prefix."""


@cache
def asked(accelerator: str) -> Asked:
    """All that looks at what was generated before, at several temperatures; one prompt is a single token."""
    source = random.Random(3)
    questions = heldout_prompts(accelerator, 30)[: len(KINDS) - 1]
    prompts = [PADDING[: 105 + 130 * (number % 2)] + ids for number, ids in enumerate(questions)]
    return {
        str(number): (prompt, SamplingParams(**kind, max_tokens=source.choice([5, 9, 30, 30])))
        for number, (prompt, kind) in enumerate(zip([*prompts, [0]], KINDS, strict=True))
    }


@pytest.fixture(scope="module")
def plain(accelerator: str) -> Mapping[str, RequestOutput]:
    return finish(start(model(accelerator, 0)), asked(accelerator))


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 4])
def test_any_number_of_drafts_gives_the_plain_answers(
    accelerator: str, plain: Mapping[str, RequestOutput], num_drafts: int
) -> None:
    engine = start(model(accelerator, num_drafts))
    tally = Tally().watch(engine)

    found = finish(engine, asked(accelerator), staggered=True)

    assert shown(found) == shown(plain)
    assert 0 < tally.accepted < tally.verified
    assert max(verified for blocks in tally.blocks.values() for verified, _ in blocks) == num_drafts


@pytest.mark.parametrize(("settings", "lengths"), [("as_usual", "all"), *((name, "random") for name in SETTINGS)])
def test_any_schedule_gives_the_plain_answers(
    accelerator: str, plain: Mapping[str, RequestOutput], settings: str, lengths: str
) -> None:
    planner = in_spells(len(settings)) if lengths == "random" else None
    engine = start(model(accelerator), planner=planner, overlap="on", **SETTINGS[settings])
    tally, ahead = Tally().watch(engine), steps_ahead(engine)

    found = finish(engine, asked(accelerator), staggered=True)

    assert shown(found) == shown(plain)
    assert tally.accepted > 0
    assert any(ahead) == (lengths == "random"), "steps overlap where nothing is drafted, and there only"
    assert (engine.scheduler.prefix_cache.counters.num_hit_tokens > 0) == (settings == "prefix_hits")
    assert (engine.statistics().num_preemptions > 0) == (settings == "preempted")


def steps_ahead(engine: Engine) -> list[bool]:
    """Whether each decode step was planned before the one before it had ended; filled as the engine runs."""
    found: list[bool] = []
    plan = engine.scheduler.plan

    def planned(now: float) -> StepPlan | None:
        step = plan(now)
        if step is not None and step.decodes:
            found.append(len(engine.scheduler._in_flight) > 1)
        return step

    engine.scheduler.plan = planned  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("coupled", [True, False])
def test_greedy_answers_are_the_same_whatever_judges_drafts(accelerator: str, coupled: bool) -> None:
    greedy = {key: (ids, params) for key, (ids, params) in asked(accelerator).items() if not params.temperature}

    same_as_plain(accelerator, start(model(accelerator, coupled=coupled), planner=random_lengths(2)), greedy)


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt_truncation": "compact", "prompt_keep_tokens": 128},
        {"prefix_cache": "bounded", "prefix_snapshots": 0},
        pytest.param(
            {"prefix_cache": "bounded", "prompt_truncation": "compact", "prompt_keep_tokens": 128},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["compact", "bounded", "compact_bounded"],
)
def test_approximations_of_prompts_stay_what_they_are(accelerator: str, settings: dict[str, object]) -> None:
    """One after the other, so that both runs meet the same hits."""
    prefix = [5 + (place * 7) % 900 for place in range(300)]
    prompts = [prefix, [*prefix, 11, 12], [*prefix[:200], 13, *prefix[201:]], [*prefix[:140], 15]]
    engines = [
        start(opened, planner=planner, **settings)
        for opened, planner in (
            (model(accelerator, 0), None),
            (model(accelerator), random_lengths(5)),
        )
    ]
    for prompt in prompts:
        for kind in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
            one = {"a": (prompt, SamplingParams(**kind, max_tokens=9, ignore_eos=True, logprobs=1))}
            expected, found = (finish(engine, one) for engine in engines)
            assert shown(found) == shown(expected)
    hits = [engine.scheduler.prefix_cache.counters.num_hit_tokens for engine in engines]
    assert hits[0] == hits[1]
    assert (hits[0] > 0) == ("prefix_cache" in settings)


def test_the_offline_interface_drafts_when_it_is_asked_to(accelerator: str) -> None:
    prompts = [{"prompt_token_ids": ids} for ids in heldout_prompts(accelerator, 40)[:6]]
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=16)
    common = {"accelerator": accelerator, "batch_invariant": True, "max_num_seqs": 8, "max_model_len": 512}
    with LLM("tiny", **common) as llm:
        expected = llm.generate(prompts, params, use_tqdm=False)
    settings = {"verification": "fixed", "num_speculative_tokens": 3}
    with LLM("tiny", **common, speculative_config=settings) as llm:
        found = llm.generate(prompts, params, use_tqdm=False)
        num_steps = llm.statistics().num_steps

    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in expected]
    assert num_steps < max(len(o.outputs[0].token_ids) for o in found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [{"temperature": 0.0}, {"temperature": 1.0}])
def test_a_thousand_prompts_get_the_plain_answers(accelerator: str, kind: dict[str, float]) -> None:
    """Claims C12 and C13, for real prompts and random ones, most of them short."""
    source = random.Random(11)
    prompts = heldout_prompts(accelerator)
    prompts += [[source.randrange(5, 900) for _ in range(source.randint(1, 60))] for _ in range(1000 - len(prompts))]
    many: Asked = {
        str(number): (ids, SamplingParams(**kind, seed=number, max_tokens=source.randint(2, 24), ignore_eos=True))
        for number, ids in enumerate(prompts)
    }
    expected = shown(finish(start(model(accelerator, 0), max_num_seqs=64), many))

    for num_drafts in (2, BLOCK):
        engine = start(model(accelerator, num_drafts), max_num_seqs=48, planner=random_lengths(num_drafts))
        found = shown(finish(engine, many, staggered=True))
        assert [key for key in many if found[key] != expected[key]] == []
