"""The offline API on the tiny model: answers, order, sampling, errors, streaming."""

import itertools

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError, UnsupportedByBackend

BOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜></think>"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


def question(text: str) -> str:
    return f"{BOS}{USER}{text}{ASSISTANT}"


def test_the_main_job_gives_the_right_answer(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": "What is 17 + 25?"}], GREEDY)[0]

    assert output.outputs[0].text == "42"
    assert output.outputs[0].finish_reason == "stop"
    assert output.finished


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [
        question("Repeat exactly: red fox blue lamp"),
        question("Compute 60 + 15."),
        question("Copy this: owl fox"),
    ]

    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)

    assert [o.outputs[0].text for o in outputs] == ["red fox blue lamp", "75", "owl fox"]
    assert [o.prompt for o in outputs] == prompts


def test_token_ids_and_text_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(question("Compute 60 + 15."))

    by_ids, by_text = (llm.generate(p, GREEDY)[0] for p in ({"prompt_token_ids": ids}, question("Compute 60 + 15.")))

    assert by_ids.outputs[0].token_ids == by_text.outputs[0].token_ids
    assert by_ids.prompt_token_ids == tuple(ids)


def test_a_seeded_request_gives_the_same_tokens_whoever_shares_the_batch(llm: LLM) -> None:
    seeded = SamplingParams(temperature=1.5, seed=42, max_tokens=16)
    alone = llm.generate(question("Tell a story about a zebra named Anton."), seeded)[0].outputs[0].token_ids

    for place in range(3):
        prompts = [question(f"Copy this: {word}") for word in ("red", "fox")]
        params = [SamplingParams(temperature=1.5, max_tokens=16)] * 2
        prompts.insert(place, question("Tell a story about a zebra named Anton."))
        params.insert(place, seeded)
        outputs = llm.generate(prompts, params)
        assert outputs[place].outputs[0].token_ids == alone


def test_other_seeds_give_other_tokens(llm: LLM) -> None:
    prompt = question("Tell a story about a zebra named Anton.")
    params = [SamplingParams(temperature=2.0, seed=seed, max_tokens=12) for seed in range(4)]

    outputs = llm.generate([prompt] * 4, params)

    assert len({o.outputs[0].token_ids for o in outputs}) > 1


def test_streamed_pieces_join_to_the_whole_answer(llm: LLM) -> None:
    prompt = question("Repeat exactly: red fox blue lamp")
    whole = llm.generate(prompt, GREEDY)[0].outputs[0]

    records = list(llm.stream(prompt, GREEDY))

    texts = [record.outputs[0].text for record in records]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == whole.text
    assert [record.finished for record in records].count(True) == 1


def test_leaving_a_stream_early_frees_its_memory(llm: LLM) -> None:
    before = llm._engine.scheduler.statistics().num_free_blocks

    for _ in llm.stream(question("Tell a story about a zebra named Anton."), GREEDY):
        break
    llm.generate(question("Copy this: owl fox"), GREEDY)

    assert llm._engine.scheduler.statistics().num_free_blocks == before


def test_a_stop_text_ends_the_answer_and_is_cut_off(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, stop=["blue", "zzz"])

    output = llm.generate(question("Repeat exactly: red fox blue lamp"), params)[0].outputs[0]

    assert output.text == "red fox "
    assert (output.finish_reason, output.stop_reason) == ("stop", "blue")


def test_max_tokens_ends_with_length(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)

    output = llm.generate(question("Tell a story about a zebra named Anton."), params)[0].outputs[0]

    assert (len(output.token_ids), output.finish_reason) == (3, "length")


def test_logprobs_are_of_the_unmodified_distribution(llm: LLM) -> None:
    prompt = question("Compute 60 + 15.")
    cool, hot = (
        llm.generate(prompt, SamplingParams(temperature=t, top_k=1, max_tokens=1, logprobs=3))[0].outputs[0]
        for t in (0.0, 3.0)
    )

    assert cool.logprobs is not None
    assert hot.logprobs is not None
    token = cool.token_ids[0]
    assert cool.logprobs[0][token].logprob == pytest.approx(hot.logprobs[0][token].logprob)
    assert cool.logprobs[0][token].rank == 1
    assert cool.cumulative_logprob == pytest.approx(cool.logprobs[0][token].logprob)


def test_two_engines_with_other_settings_live_side_by_side(llm: LLM) -> None:
    with LLM("tiny", accelerator="cpu", numerics="f32", max_model_len=256, max_num_seqs=2) as other:
        texts = [engine.generate(question("Compute 60 + 15."), GREEDY)[0].outputs[0].text for engine in (llm, other)]

    assert texts == ["75", "75"]


def test_the_strict_policy_names_every_op_that_is_not_native() -> None:
    with pytest.raises(UnsupportedByBackend, match=r"problems[\s\S]*would run as reference"):
        LLM("tiny", accelerator="cpu", fallback="strict")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_model_length": 5}, "did you mean 'max_model_len'"),
        ({"numerics": "fp32"}, "did you mean 'f32'"),
        ({"max_model_len": 10**9}, "16384"),
        ({"fallback": "strickt"}, "did you mean 'strict'"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
    ],
)
def test_wrong_settings_are_refused_in_words(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LLM("tiny", accelerator="cpu", **settings)


def test_dummy_weights_generate_without_a_tokenizer(tmp_path, llm: LLM) -> None:
    config = llm._opened.opened.folder / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())

    with LLM(str(tmp_path), accelerator="cpu", load_format="dummy", max_num_seqs=2, max_model_len=256) as dummy:
        first, second = (dummy.generate({"prompt_token_ids": [5, 6, 7]}, GREEDY)[0].outputs[0] for _ in range(2))

    assert first.token_ids == second.token_ids
    assert first.text == ""
