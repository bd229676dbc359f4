"""What a request may ask of the engine: several completions, bad words, scores of the prompt, kinds of records."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch

from deepinfer_core import LLM, RequestOutput, SamplingParams
from deepinfer_core.engine.bad_words import bad_word_tokens
from deepinfer_core.engine.engine import Engine
from deepinfer_core.runtime.sampling_tensors import SamplingRow, completion_seed, penalties, token_mask
from tests.engine.conftest import MakeEngine, question

STORY = question("Tell a story about a zebra named Anton.")


def run(engine: Engine, token_ids: list[int], params: SamplingParams) -> list[RequestOutput]:
    """All records of one request."""
    engine.add("a", token_ids, params)
    return list(engine.run())


def test_completions_come_in_the_order_of_their_indices_with_draws_of_their_own(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.5, seed=11, max_tokens=12)

    completions = llm.generate(STORY, params)[0].outputs

    alone = [
        llm.generate(STORY, SamplingParams(temperature=1.5, seed=completion_seed(11, index), max_tokens=12))[0]
        for index in range(3)
    ]
    assert [completion.index for completion in completions] == [0, 1, 2]
    assert [completion.token_ids for completion in completions] == [output.outputs[0].token_ids for output in alone]
    assert len({completion.token_ids for completion in completions}) == 3


def test_a_request_is_finished_when_its_last_completion_is(llm: LLM, make_engine: MakeEngine) -> None:
    params = SamplingParams(n=4, temperature=1.5, seed=3, max_tokens=8)

    records = run(make_engine(max_num_seqs=2), llm.encode(STORY), params)

    assert [record.finished for record in records].count(True) == 1
    assert records[-1].finished
    assert {completion.finish_reason for completion in records[-1].outputs} == {"length"}
    assert any(record.outputs[0].finish_reason for record in records if not record.finished)


def test_an_abort_ends_every_completion_of_a_request(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2)
    engine.add("a", llm.encode(STORY), SamplingParams(n=4, max_tokens=50))
    for _ in range(4):
        engine.step()

    engine.abort("a")
    (ended,) = [record for record in engine.run() if record.finished]

    assert [completion.finish_reason for completion in ended.outputs] == ["abort"] * 4
    engine.scheduler.require_all_free()


def test_bad_words_do_not_come_at_the_beginning_nor_after_a_space(llm: LLM) -> None:
    prompt = question("Repeat exactly: red fox blue lamp")
    free, bound = (
        llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=24, bad_words=words))[0].outputs[0].text
        for words in ([], ["red", "blue"])
    )

    assert free == "red fox blue lamp"
    assert "red" not in bound
    assert "blue" not in bound


def test_bad_words_are_tokens_with_and_without_a_space(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()

    assert bad_word_tokens(["blue", " blue"], tokenizer) == (
        tuple(llm.encode("blue")),
        tuple(llm.encode(" blue")),
    )
    (plain, spaced) = bad_word_tokens(["blue lamp"], tokenizer)
    assert (len(plain), spaced) == (2, tuple(llm.encode(" blue lamp")))


def test_scores_of_a_prompt_have_the_shape_of_vllm(llm: LLM) -> None:
    (output,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2))

    scores = output.prompt_logprobs
    assert scores is not None
    assert len(scores) == len(output.prompt_token_ids)
    assert scores[0] is None
    for token, row in zip(output.prompt_token_ids[1:], scores[1:], strict=True):
        assert row is not None
        assert next(iter(row)) == token
        assert 2 <= len(row) <= 3
        assert {1, 2} <= {value.rank for value in row.values()}
        assert row[token].decoded_token == llm.decode([token], skip_special_tokens=False)


def test_the_score_of_a_prompt_token_is_the_one_it_gets_when_it_is_generated(llm: LLM) -> None:
    prompt = llm.encode(STORY)
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=0)
    (generated,) = llm.generate({"prompt_token_ids": prompt}, params)
    completion = generated.outputs[0]

    longer = {"prompt_token_ids": [*prompt, *completion.token_ids]}
    (scored,) = llm.generate(longer, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))

    assert scored.prompt_logprobs is not None
    assert completion.logprobs is not None
    for token, row, score in zip(
        completion.token_ids, completion.logprobs, scored.prompt_logprobs[len(prompt) :], strict=True
    ):
        assert score is not None
        assert score[token].logprob == pytest.approx(row[token].logprob, abs=0.05)


def test_scores_of_a_prompt_are_the_same_the_second_time(llm: LLM, make_engine: MakeEngine) -> None:
    """Case A21 of the bug reports: one block and one token, twice."""
    prompt = (llm.encode(STORY) * 20)[:129]
    engine, params = make_engine(), SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)

    first, second = (run(engine, prompt, params)[-1].prompt_logprobs for _ in range(2))

    assert first is not None
    assert len(first) == 129
    assert first == second


@pytest.mark.parametrize("budget", [16, 128, 300])
def test_scores_of_a_prompt_are_the_same_in_chunks(
    llm: LLM, make_engine: MakeEngine, opened_f32: object, budget: int
) -> None:
    prompt = (llm.encode(STORY) * 20)[:300]
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=0)
    whole = run(make_engine(opened_f32), prompt, params)[-1].prompt_logprobs

    chunked = run(make_engine(opened_f32, max_num_batched_tokens=budget), prompt, params)[-1].prompt_logprobs

    assert whole is not None
    assert chunked is not None
    for token, one, other in zip(prompt[1:], whole[1:], chunked[1:], strict=True):
        assert one is not None
        assert other is not None
        assert other[token].logprob == pytest.approx(one[token].logprob, abs=1e-3)


def test_scores_of_a_prompt_are_reported_once_although_it_was_preempted(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine(kv_cache_memory_gib=5 * 35840 / 2**30)
    ids = (llm.encode(STORY) * 20)[:120]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, prompt_logprobs=0, output_kind="delta")
    for number in range(4):
        engine.add(str(number), ids, params)

    records = list(engine.run())

    assert sum(record.metrics.num_preemptions for record in records if record.finished) > 0
    for number in range(4):
        scores = [r.prompt_logprobs for r in records if r.request_id == str(number) and r.prompt_logprobs is not None]
        assert [len(score) for score in scores] == [120]


def test_several_completions_share_the_scores_of_their_prompt(llm: LLM) -> None:
    (output,) = llm.generate(STORY, SamplingParams(n=3, max_tokens=2, prompt_logprobs=0))

    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_deltas_join_to_the_whole(llm: LLM, make_engine: MakeEngine) -> None:
    params = {"n": 2, "temperature": 1.5, "seed": 5, "max_tokens": 16, "logprobs": 1}
    ids = llm.encode(STORY)
    whole = run(make_engine(), ids, SamplingParams(output_kind="final", **params))

    deltas = run(make_engine(), ids, SamplingParams(output_kind="delta", **params))

    assert len(whole) == 1
    for index in range(2):
        parts = [part for record in deltas for part in record.outputs if part.index == index]
        complete = whole[0].outputs[index]
        assert "".join(part.text for part in parts) == complete.text
        assert tuple(token for part in parts for token in part.token_ids) == complete.token_ids
        assert [part.finish_reason for part in parts if part.finish_reason] == [complete.finish_reason]
        assert parts[-1].cumulative_logprob == pytest.approx(complete.cumulative_logprob)


def test_records_hold_everything_so_far_unless_asked_otherwise(llm: LLM, make_engine: MakeEngine) -> None:
    records = run(make_engine(), llm.encode(STORY), SamplingParams(temperature=0.0, max_tokens=6))

    assert [len(record.outputs[0].token_ids) for record in records] == [1, 2, 3, 4, 5, 6]


def test_metrics_tell_the_life_of_a_request(llm: LLM, make_engine: MakeEngine) -> None:
    ticks = iter(range(10_000))
    engine = make_engine(clock=lambda: float(next(ticks)), max_num_seqs=1)
    engine.add("first", llm.encode(STORY), SamplingParams(temperature=0.0, max_tokens=3))
    engine.add("second", llm.encode(STORY), SamplingParams(temperature=0.0, max_tokens=3))

    first, second = (record.metrics for record in engine.run() if record.finished)

    assert first is not None
    assert second is not None
    assert first.arrival_time < second.arrival_time < first.first_scheduled_time
    assert first.finished_time < second.first_scheduled_time < second.first_token_time
    assert second.first_token_time < second.last_token_time < second.finished_time
    assert second.queue_time_s == second.first_scheduled_time - second.arrival_time
    assert second.time_to_first_token_s == second.queue_time_s + second.prefill_time_s
    assert second.total_time_s > second.time_to_first_token_s + second.decode_time_s
    assert (first.num_cached_tokens, first.num_preemptions) == (0, 0)


def test_statistics_count_what_happened(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2)
    ids = llm.encode(STORY)
    for number in range(3):
        engine.add(str(number), ids, SamplingParams(temperature=0.0, max_tokens=4))
    engine.step()

    now = engine.statistics()
    assert (now.num_requests, now.num_unfinished_requests, now.num_running, now.num_waiting) == (3, 3, 2, 1)
    assert (now.num_prompt_tokens, now.num_generated_tokens, now.num_free_state_slots) == (3 * len(ids), 2, 0)

    list(engine.run())
    end = engine.statistics()
    assert (end.num_generated_tokens, dict(end.num_finished)) == (12, {"length": 3})
    assert (end.num_free_blocks, end.num_free_state_slots) == (end.num_blocks, end.num_state_slots)


def test_waiting_for_leased_memory_is_a_nap_and_not_a_spin(llm: LLM, make_engine: MakeEngine) -> None:
    seconds = [0.0]

    def pass_time(nap_s: float) -> None:
        seconds[0] += nap_s

    engine = make_engine(max_num_seqs=1, clock=lambda: seconds[0], nap=pass_time)
    ids, params = llm.encode(STORY), SamplingParams(temperature=0.0, max_tokens=3)
    engine.add("first", ids, params)
    engine.step()
    (running,) = engine._requests["first"].sequences
    engine.scheduler.leases.grant(running, expires_at=0.1)
    engine.abort("first")
    engine.add("second", ids, params)
    engine.step()

    num_steps = 0
    while engine.statistics().num_waiting:
        engine.step()
        num_steps += 1
    (ended,) = [record for record in engine.run() if record.finished]

    assert 0.1 <= seconds[0] < 0.2
    assert num_steps <= 21
    assert (ended.request_id, ended.outputs[0].error) == ("second", "")
    engine.scheduler.require_all_free()


def test_penalties_see_the_whole_prompt_and_every_token_so_far(llm: LLM, make_engine: MakeEngine) -> None:
    engine, ids = make_engine(), llm.encode(STORY)
    params = SamplingParams(temperature=1.0, seed=1, frequency_penalty=0.5, max_tokens=9, ignore_eos=True, n=2)
    engine.add("a", ids, params)

    for num_tokens in range(1, 4):
        engine.step()
        request = engine._requests["a"]
        rows = [request.sampling_rows(index)[0] for index in range(2)]

        assert [list(row.prompt_token_ids) for row in rows] == [ids, ids]
        assert [list(row.output_token_ids) for row in rows] == [c.token_ids for c in request.completions]
        assert {len(row.output_token_ids) for row in rows} == {num_tokens}


@pytest.mark.parametrize("kind", [tuple, list, lambda ids: array("q", ids)], ids=["tuple", "list", "array"])
def test_occurrences_are_flat_places_of_the_rows_that_ask(kind: Any) -> None:
    plain, penal = SamplingParams(), SamplingParams(presence_penalty=0.5)
    rows = [
        SamplingRow(params=params, seed=0, position=0, prompt_token_ids=kind(prompt), output_token_ids=kind(output))
        for params, prompt, output in [(penal, [1, 2, 99], [3, 3]), (plain, [4], [4]), (penal, [], [0, 9])]
    ]

    found = penalties(rows, vocab_size=10)

    assert found is not None
    assert (found.in_prompt.tolist(), found.in_output.tolist()) == ([1, 2], [3, 3, 20, 29])
    assert found.presence.tolist() == [0.5, 0.0, 0.5]
    assert penalties(rows[1:2], vocab_size=10) is None


def test_words_of_a_mask_have_a_bit_for_each_allowed_token() -> None:
    rows = [SamplingRow(params=SamplingParams(allowed_token_ids=ids), seed=0, position=0) for ids in ([0, 31, 33], [5])]

    mask = token_mask(rows, vocab_size=40, fill=lambda *_: None)

    assert mask is not None
    assert mask.tolist() == [[1 - 2**31, 2], [32, 0]]
    assert mask.dtype == torch.int32
