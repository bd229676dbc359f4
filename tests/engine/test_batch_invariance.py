"""In batch-invariant mode nothing but the prompt, the parameters and the seed decides a bit of an answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel

PROMPT = [5 + (place * 7) % 900 for place in range(300)]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "top_p": 0.9, "seed": 11, "repetition_penalty": 1.1},
}
WAYS: dict[str, dict[str, Any]] = {
    "company": {},
    "pieces": {"max_num_batched_tokens": 32},
    "overlap": {"overlap": "on"},
    "mixed": {"step_policy": "mixed", "max_chunk_tokens": 40, "overlap": "on"},
    "preempted": {"kv_cache_memory_gib": 9.5 * 35840 / 2**30, "headroom_blocks": 0},
    "hit": {"prefix_cache": "exact"},
}


def answer(opened: OpenedModel, params: SamplingParams, settings: dict[str, Any], company: int) -> object:
    """Tokens and log-probabilities of the prompt among others."""
    source = random.Random(company)
    engine = Engine(opened, EngineConfig(model="tiny", **{"max_num_seqs": 16, "max_model_len": 1024, **settings}))
    if "prefix_cache" in settings:
        engine.add("before", [*PROMPT, 6], params)
        list(engine.run())
    for number in range(company):
        engine.add(f"other {number}", [source.randrange(5, 900) for _ in range(source.randint(3, 300))], params)
    engine.add("it", PROMPT, params)
    [last] = [record for record in engine.run() if record.finished and record.request_id == "it"]
    if "prefix_cache" in settings:
        assert last.metrics is not None
        assert last.metrics.num_cached_tokens == 256
    return last.outputs[0].token_ids, last.outputs[0].logprobs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_no_bit_depends_on_how_a_prompt_is_run(opened_invariant: OpenedModel, kind: str, way: str) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=4, **KINDS[kind])
    alone = answer(opened_invariant, params, {}, company=0)

    assert answer(opened_invariant, params, WAYS[way], company=9) == alone
