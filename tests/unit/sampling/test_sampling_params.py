"""Requests say what they want in vLLM's words, and every mistake is named at once."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest

from deepinfer_core.errors import RequestError
from deepinfer_core.sampling_params import RequestOutputKind, SamplingParams


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()

    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.stop, params.stop_token_ids, params.logit_bias, params.allowed_token_ids) == ((), (), {}, None)
    assert (params.n, params.bad_words, params.prompt_logprobs) == (1, (), None)
    assert (params.detokenize, params.skip_special_tokens, params.include_stop_str_in_output) == (True, True, False)
    assert params.output_kind is RequestOutputKind.CUMULATIVE


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", "1", "finite number"),
        ("temperature", True, "finite number"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", -2, "0 or -1 keeps all"),
        ("top_k", 2.0, "integer"),
        ("min_p", 1.1, "at most 1"),
        ("seed", "7", "integer"),
        ("max_tokens", 0, "at least one token"),
        ("min_tokens", -1, "from 0"),
        ("ignore_eos", 1, "True or False"),
        ("stop", "", "empty"),
        ("stop", ["a", 3], "list of texts"),
        ("stop_token_ids", [-1], "token ids"),
        ("stop_token_ids", 5, "token ids"),
        ("logprobs", -1, "from 0 to 1000"),
        ("prompt_logprobs", 1001, "from 0 to 1000"),
        ("prompt_logprobs", True, "integer"),
        ("n", 0, "from 1 to 128"),
        ("n", 129, "from 1 to 128"),
        ("bad_words", [""], "none of them empty"),
        ("bad_words", ["a", "  "], "visible characters"),
        ("bad_words", ["\ud800"], "half surrogate pair"),
        ("detokenize", None, "True or False"),
        ("skip_special_tokens", "yes", "True or False"),
        ("include_stop_str_in_output", 0, "True or False"),
        ("output_kind", "all", "cumulative, delta, final"),
        ("output_kind", 1, "one of"),
        ("presence_penalty", 2.5, "at most 2"),
        ("frequency_penalty", -2.5, "at least -2"),
        ("repetition_penalty", 0.0, "above 0"),
        ("logit_bias", {3: 101}, "at most 100"),
        ("logit_bias", {"a": 1}, "token ids"),
        ("logit_bias", [3], "mapping"),
        ("allowed_token_ids", [], "leave it out"),
        ("allowed_token_ids", set(), "leave it out"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(field: str, value: Any, said: str) -> None:
    with pytest.raises(RequestError, match=f"SamplingParams.*{field}.*{said}"):
        SamplingParams(**{field: value})


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(temperature=-1, top_p=2, max_tokens=0, seed=1, seq_seed=2)

    assert "4 problems" in str(caught.value)


def test_more_minimum_than_maximum_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens=9 is more than max_tokens=4"):
        SamplingParams(min_tokens=9, max_tokens=4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stop": "x", "detokenize": False}, "stop looks for texts, but detokenize=False"),
        ({"n": 3, "temperature": 0}, "one completion 3 times"),
        ({"min_tokens": 17}, "min_tokens=17 is more than max_tokens=16"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        SamplingParams(**fields)


def test_contradictions_are_listed_with_everything_else() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(top_p=3, n=2, temperature=0, min_tokens=5, max_tokens=4, stop="x", detokenize=False)

    assert "4 problems" in str(caught.value)


def test_a_field_that_cannot_be_read_contradicts_nothing() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(max_tokens="many", min_tokens=5)

    assert str(caught.value).count("max_tokens") == 1
    assert "min_tokens" not in str(caught.value)


def test_ten_thousand_stop_texts_are_taken() -> None:
    assert len(SamplingParams(stop=[f"stop {number}" for number in range(10_000)]).stop) == 10_000


def test_kinds_of_output_have_the_names_of_vllm() -> None:
    assert SamplingParams(output_kind=RequestOutputKind.DELTA) == SamplingParams(output_kind="delta")
    assert SamplingParams(output_kind="final").output_kind is RequestOutputKind.FINAL_ONLY


def test_words_of_deepinfer_are_accepted() -> None:
    params = SamplingParams(seq_seed=5, top_logprobs=3)

    assert (params.seed, params.logprobs) == (5, 3)


def test_values_are_stored_in_plain_types_of_our_own() -> None:
    bias = {4: 1}
    params = SamplingParams(stop="end", stop_token_ids=[7], logit_bias=bias, allowed_token_ids=[1, 2], seed=-1)
    bias[5] = 2

    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (("end",), (7,), (1, 2))
    assert (params.logit_bias, params.seed) == ({4: 1.0}, 2**64 - 1)


def test_parameters_survive_replacement_and_pickling() -> None:
    params = SamplingParams(seq_seed=5, temperature=0, logit_bias={1: 2.0})

    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, max_tokens=3) == SamplingParams(
        seed=5, temperature=0, logit_bias={1: 2.0}, max_tokens=3
    )


def test_tokens_that_the_model_lacks_are_refused_before_they_meet_a_batch() -> None:
    params = SamplingParams(stop_token_ids=[99], logit_bias={100: 1.0, 3: 1.0}, allowed_token_ids=[3])

    with pytest.raises(RequestError) as caught:
        params.check_vocabulary(99)

    assert "2 problems" in str(caught.value)
    assert "logit_bias names tokens [100]; this model has tokens 0 to 98" in str(caught.value)
    params.check_vocabulary(101)


def test_parameters_are_made_without_a_tensor_library() -> None:
    code = "import sys, deepinfer_core.sampling_params; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
