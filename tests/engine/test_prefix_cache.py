"""Prefixes are reused, and nothing about an answer shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from deepinfer_core import EngineConfig, SamplingParams
from deepinfer_core.engine.engine import Engine
from deepinfer_core.engine.opening import OpenedModel
from deepinfer_core.errors import ConfigError
from tests.engine.conftest import MakeEngine

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, seed=7, max_tokens=8, logprobs=3, ignore_eos=True)
PREFIX = [5 + (place * 7) % 900 for place in range(300)]


def prompts() -> list[list[int]]:
    """A prompt, again, longer, and three that part from it: the third of these finds where the first parted."""
    return [
        PREFIX,
        PREFIX,
        [*PREFIX, 11, 12],
        [*PREFIX[:200], 13, *PREFIX[201:]],
        [*PREFIX[:100], 14],
        [*PREFIX[:190], 15],
    ]


def answers(engine: Engine, all_prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[tuple[object, ...]]:
    """Tokens and log-probabilities, one request after the other, so that each may find what the others left."""
    found = []
    for number, prompt in enumerate(all_prompts):
        engine.add(str(number), prompt, params)
        [last] = [record for record in engine.run() if record.finished]
        found.append((last.outputs[0].token_ids, last.outputs[0].logprobs))
    return found


@pytest.mark.parametrize("params", [GREEDY, DRAWN])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_an_exact_hit_gives_the_bits_of_a_cold_run(
    make_engine: MakeEngine, opened_invariant: OpenedModel, params: SamplingParams, overlap: str
) -> None:
    cold = answers(make_engine(opened_invariant), prompts(), params)
    engine = make_engine(opened_invariant, prefix_cache="exact", overlap=overlap)

    warm = answers(engine, prompts(), params)

    assert warm == cold
    assert engine.scheduler.prefix_cache.counters.num_hit_tokens == 256 + 256 + 128
    engine.scheduler.require_all_free()


def test_a_conversation_goes_on_where_its_last_answer_ended(make_engine: MakeEngine, opened_f32: OpenedModel) -> None:
    engine = make_engine(opened_f32, prefix_cache="exact")
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    engine.add("first", PREFIX[:200], params)
    [first] = [record for record in engine.run() if record.finished]
    history = [*PREFIX[:200], *first.outputs[0].token_ids, 11, 12]

    engine.add("second", history, GREEDY)
    [second] = [record for record in engine.run() if record.finished]

    assert second.metrics is not None
    assert second.metrics.num_cached_tokens == 256
    cold = answers(make_engine(opened_f32), [history], GREEDY)
    assert second.outputs[0].token_ids == cold[0][0]


def test_bounded_replay_computes_the_last_window_of_a_hit_again(
    make_engine: MakeEngine, opened_f32: OpenedModel
) -> None:
    engine = make_engine(opened_f32, prefix_cache="bounded", prefix_snapshots=0, max_model_len=1024)
    blocks = []
    for request_id in ("first", "second"):
        engine.add(request_id, [*PREFIX, *PREFIX], GREEDY)
        [last] = [record for record in engine.run() if record.finished]
        blocks.append(engine_bytes(engine))

    assert last.metrics is not None
    assert last.metrics.num_cached_tokens == 512 - 128
    assert torch.equal(*blocks), "stored entries of the prefix were written again"


def engine_bytes(engine: Engine) -> torch.Tensor:
    """The four full blocks that the first request left; the second one may read them only."""
    return engine._runner._transfer._caches.block_pool[1:5].clone()


def test_prompts_whose_log_probabilities_are_asked_for_are_computed_whole(
    make_engine: MakeEngine, opened_f32: OpenedModel
) -> None:
    engine = make_engine(opened_f32, prefix_cache="exact")
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
    for request_id in ("first", "second"):
        engine.add(request_id, PREFIX, params)
        [last] = [record for record in engine.run() if record.finished]

    assert last.prompt_logprobs is not None
    assert len(last.prompt_logprobs) == len(PREFIX)


@pytest.mark.parametrize("spoil", [False, True])
def test_a_restarted_engine_finds_prefixes_on_the_disk(
    make_engine: MakeEngine, opened_invariant: OpenedModel, tmp_path: Path, spoil: bool
) -> None:
    settings = {
        "prefix_cache": "exact",
        "prefix_memory_gib": 0.01,
        "prefix_disk": str(tmp_path),
        "prefix_disk_gib": 0.1,
    }
    first = make_engine(opened_invariant, **settings)
    cold = answers(first, [PREFIX], GREEDY)
    first.close()
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files if spoil else ():
        file.write_bytes(file.read_bytes()[:-1] + b"x")

    second = make_engine(opened_invariant, **settings)
    warm = answers(second, [PREFIX], GREEDY)

    assert warm == cold
    assert second.scheduler.prefix_cache.counters.num_hit_tokens == (0 if spoil else 256)
    assert second.scheduler.prefix_cache.counters.num_outer_tokens == (0 if spoil else 256)
    second.close()


def test_contradictory_settings_are_refused_together() -> None:
    with pytest.raises(ConfigError) as refusal:
        EngineConfig(model="tiny", prefix_cache="exact", prefix_snapshots=0, prompt_truncation="compact")
    assert len(refusal.value.problems) == 2

    with pytest.raises(ConfigError, match="prefix_memory_gib is set, but prefix_cache is off"):
        EngineConfig(model="tiny", prefix_memory_gib=1.0)
