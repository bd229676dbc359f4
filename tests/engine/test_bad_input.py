"""Requests that cannot be served are refused in words, one by one, and the others run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError, RequestError
from tests.engine.conftest import MakeEngine, question

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
BLOCK_BYTES = 35840


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        ("", "no tokens"),
        ({"prompt_token_ids": []}, "no tokens"),
        ({"prompt_token_ids": [0, 1280]}, "1280.*0 .. 1279"),
        ({"prompt_token_ids": [0, -1]}, "outside"),
        ({"prompt_token_ids": [0, True]}, "True.*outside"),
        ({"prompt_token_ids": [0, 1.5]}, "1.5.*outside"),
        ({"prompt_token_ids": "abc"}, "no list of whole numbers"),
        ({"prompt_token_ids": 7}, "no list of whole numbers"),
        ({"prompt_token_ids": [5] * 17000}, "17000"),
        ({"prompt": 17}, "give a text"),
        ({"text": "a"}, "give a text"),
        (17, "give a text"),
        (None, "give a text"),
        ("half a pair \ud800", "half a surrogate pair"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_and_the_engine_lives(llm: LLM, prompt: Any, match: str) -> None:
    """Case A26 of the bug reports, and its relatives."""
    with pytest.raises(RequestError, match=match):
        llm.generate([prompt], GREEDY)

    (refused, served) = llm.generate([prompt, question("Compute 60 + 15.")], GREEDY, on_invalid="return")
    assert (refused.finished, refused.outputs[0].finish_reason, refused.outputs[0].token_ids) == (True, "error", ())
    assert served.outputs[0].text == "75"


def test_one_error_names_every_bad_request_and_nothing_runs(llm: LLM) -> None:
    prompts = [question("Copy this: owl"), {"prompt_token_ids": [9999]}, {"prompt_token_ids": []}, 3]

    with pytest.raises(RequestError, match=r"request 1: .*9999[\s\S]*request 2: .*no tokens[\s\S]*request 3: .*a text"):
        llm.generate(prompts, GREEDY)

    assert not llm._engine.has_unfinished


def test_everything_that_is_wrong_with_one_request_is_listed(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(
            {"prompt_token_ids": [9999]}, SamplingParams(stop_token_ids=[5000]), timeout_s=-1.0, priority=[1.5]
        )

    for words in ("9999", "5000", "timeout_s=-1.0", "priority=1.5"):
        assert words in str(caught.value)


def test_returned_refusals_stand_in_their_places_with_their_reasons(llm: LLM) -> None:
    good = question("Compute 60 + 15.")
    params: list[Any] = [GREEDY, SamplingParams(allowed_token_ids=[5000]), GREEDY, {"temperature": 0}, GREEDY]

    outputs = llm.generate([good, good, "", good, good], params, on_invalid="return")

    assert [output.outputs[0].text for output in outputs] == ["75", "", "", "", "75"]
    reasons = [output.outputs[0].error for output in outputs]
    assert "allowed_token_ids" in reasons[1]
    assert "no tokens" in reasons[2]
    assert "SamplingParams" in reasons[3]


def test_bad_conversations_are_returned_too(llm: LLM) -> None:
    fine = [{"role": "user", "content": "Compute 60 + 15."}]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]

    outputs = llm.chat([fine, image, [{"role": "nobody", "content": "a"}]], GREEDY, on_invalid="return")

    assert outputs[0].outputs[0].text == "75"
    assert [output.outputs[0].finish_reason for output in outputs[1:]] == ["error", "error"]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"prompts": 5}, "prompts is 5; give a list"),
        ({"prompts": ["a"], "on_invalid": "ignore"}, "'raise' or 'return'"),
        ({"prompts": ["a", "b"], "sampling_params": [GREEDY]}, "2 prompts but 1 sampling_params"),
        ({"prompts": ["a", "b"], "priority": [1, 2, 3]}, "2 prompts but 3 priority"),
        ({"prompts": ["a"], "timeout_s": math.nan}, "timeout_s=nan"),
        ({"prompts": ["a"], "timeout_s": "soon"}, "timeout_s='soon'"),
    ],
)
def test_wrong_arguments_are_refused_in_words(llm: LLM, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        llm.generate(**arguments)


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_a_prompt_at_the_limit_yields_one_token_and_one_above_is_refused(llm: LLM, make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=64)

    engine.add("at", [5] * 63, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    with pytest.raises(RequestError, match="64 tokens, but max_model_len=64 leaves it 63"):
        engine.add("above", [5] * 64, GREEDY)

    (ended,) = [record for record in engine.run() if record.finished]
    assert (len(ended.outputs[0].token_ids), ended.outputs[0].finish_reason) == (1, "length")


def test_a_prompt_that_no_step_can_hold_is_refused_and_others_proceed(llm: LLM, make_engine: MakeEngine) -> None:
    """Case A24 of the bug reports."""
    engine = make_engine(max_num_batched_tokens=16, chunked_prefill=False)

    with pytest.raises(RequestError, match="17 tokens, but max_num_batched_tokens=16 and chunked_prefill is off"):
        engine.add("long", [5] * 17, GREEDY)
    engine.add("short", [5] * 16, SamplingParams(temperature=0.0, max_tokens=2))

    assert [record.request_id for record in engine.run() if record.finished] == ["short"]


def test_a_prompt_beyond_a_small_cache_is_refused_and_others_proceed(llm: LLM, make_engine: MakeEngine) -> None:
    """Case A25 of the bug reports: the memory lowers the limit below what was configured."""
    engine = make_engine(kv_cache_memory_gib=1.5 * BLOCK_BYTES / 2**30)

    with pytest.raises(RequestError, match=r"128 tokens, but the whole cache \(1 blocks of 128\) leaves it 127"):
        engine.add("long", [5] * 128, GREEDY)
    engine.add("short", llm.encode(question("Compute 60 + 15.")), GREEDY)

    (ended,) = [record for record in engine.run() if record.finished]
    assert ended.outputs[0].text == "75"


def test_texts_need_a_tokenizer(llm: LLM, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text((llm._opened.opened.folder / "config.json").read_text())
    with LLM(str(tmp_path), accelerator="cpu", load_format="dummy", max_num_seqs=2, max_model_len=256) as dummy:
        with pytest.raises(RequestError, match="no tokenizer"):
            dummy.generate("a text", GREEDY)
        with pytest.raises(RequestError, match="bad_words and stop cannot be found without a tokenizer"):
            dummy.generate({"prompt_token_ids": [5]}, SamplingParams(stop="x", bad_words=["y"]))
        with pytest.raises(RequestError, match="no tokenizer"):
            dummy.decode([5])

        output = dummy.generate({"prompt_token_ids": [5]}, SamplingParams(temperature=0, logprobs=0, max_tokens=2))[0]

    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert completion.logprobs[0][completion.token_ids[0]].decoded_token is None


def test_helpers_encode_and_decode_in_words(llm: LLM) -> None:
    assert llm.decode(llm.encode("red fox č")) == "red fox č"
    assert llm.decode([]) == ""
    assert llm.decode([0, *llm.encode("owl")], skip_special_tokens=False) == "<｜begin▁of▁sentence｜>owl"
    assert 0 not in llm.encode("<｜begin▁of▁sentence｜>owl", recognize_special=False)
    with pytest.raises(RequestError, match="no text"):
        llm.encode(5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="outside"):
        llm.decode([5000])


def test_ten_thousand_stop_texts_run(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, stop=[f"stop {n}" for n in range(10_000)] + ["blue"])

    output = llm.generate(question("Repeat exactly: red fox blue lamp"), params)[0].outputs[0]

    assert (output.text, output.stop_reason) == ("red fox ", "blue")


def test_steps_too_small_for_the_batch_are_refused_when_the_engine_is_made(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens=4 is less than max_num_seqs=8"):
        make_engine(max_num_batched_tokens=4)
