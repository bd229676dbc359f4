"""Files of prompts and of results: what a line may say, and what becomes of one that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer_core.engine.batch_file import Defaults, PromptLine, read_prompts
from deepinfer_core.engine.batch_results import ResultsFile, failure_of, result_of
from deepinfer_core.errors import ConfigError
from deepinfer_core.outputs import CompletionOutput, Logprob, RequestOutput


def lines_of(tmp_path: Path, *lines: str | bytes, name: str = "p.jsonl", **defaults: object) -> tuple[PromptLine, ...]:
    file = tmp_path / name
    file.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines))
    return read_prompts(file, Defaults(**defaults))


def test_a_text_file_has_a_users_message_on_each_line(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "one", "", "  ", "two\r", '{"prompt": "three"}', name="p.txt")

    assert [(line.number, line.id) for line in lines] == [(1, 1), (4, 4), (5, 5)]
    assert [line.messages for line in lines] == [
        [{"role": "user", "content": text}] for text in ("one", "two", '{"prompt": "three"}')
    ]
    assert all(line.prompt is None and not line.error for line in lines)


def test_raw_texts_are_prompts_as_they_are(tmp_path: Path) -> None:
    text, fields = lines_of(tmp_path, "one", name="p.txt", is_raw=True) + lines_of(
        tmp_path, '{"prompt": "two"}', is_raw=True
    )

    assert (text.prompt, fields.prompt) == ("one", "two")


def test_a_line_of_json_says_what_differs_from_the_defaults(tmp_path: Path) -> None:
    sampling = {"max_tokens": 9, "temperature": 0.5, "seed": 100}
    first, second = lines_of(
        tmp_path,
        '{"prompt_token_ids": [5, 6], "id": "a", "max_tokens": 3, "stop": ["x"], "logit_bias": {"7": 2}}',
        '{"messages": [{"role": "user", "content": "q"}], "reasoning_effort": "low", "seq_seed": 5}',
        sampling=sampling,
        reasoning_effort="high",
    )

    assert (first.id, first.prompt) == ("a", {"prompt_token_ids": [5, 6]})
    assert (first.params.max_tokens, first.params.temperature, first.params.stop) == (3, 0.5, ("x",))
    assert first.params.logit_bias == {7: 2.0}
    assert first.params.seed == 101
    assert (second.params.max_tokens, second.params.seed) == (9, 5)
    assert second.messages == [{"role": "user", "content": "q"}]
    assert second.chat_options == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{bad", "it is not JSON"),
        ("[1]", "it is JSON but no object"),
        ("[" * 100000, "it is JSON that cannot be read"),
        ('{"prompt": "x", "seed": ' + "1" * 5000 + "}", "it is JSON that cannot be read"),
        (b'{"prompt": "\xff"}', "it is not UTF-8"),
        ("{}", "it has no prompt; give one of prompt, prompt_token_ids or messages"),
        ('{"prompt": "x", "messages": [{}]}', "it has prompt and messages"),
        ('{"prompt": 5}', "prompt must be a text"),
        ('{"messages": []}', "messages must be a list of objects, at least one"),
        ('{"messages": null}', "messages must be a list of objects"),
        ('{"messages": [{}], "tools": 5}', "tools must be a list of objects"),
        ('{"messages": [{}], "continue_final_message": 1}', "continue_final_message must be true or false"),
        ('{"prompt": "x", "id": 1.5}', "id must be a text or a whole number"),
        ('{"prompt": "x", "tempreature": 1}', "'tempreature' is not a field of a line; did you mean 'temperature'?"),
        ('{"prompt": "x", "output_kind": "delta"}', "'output_kind' is not a field of a line"),
        ('{"prompt_token_ids": [1], "tools": []}', "tools cannot change an exact prompt; give messages"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens=0 must be an integer from 1"),
        ('{"prompt": "x", "temperature": NaN}', "temperature=nan must be a finite number"),
        ('{"prompt": "x", "top_p": "high"}', "top_p='high' must be a finite number"),
        ('{"prompt": "x", "stop": [""]}', "none of them empty"),
        ('{"prompt": "x", "min_tokens": 9, "max_tokens": 3}', "min_tokens=9 is more than max_tokens=3"),
        ('{"prompt": "x", "logit_bias": {"a": 1}}', "logit_bias=['a'] must be a list of token ids"),
    ],
)
def test_a_wrong_line_is_wrong_alone(tmp_path: Path, line: str | bytes, problem: str) -> None:
    before, wrong, after = lines_of(tmp_path, '{"prompt": "a"}', line, '{"prompt": "b"}')

    assert problem in wrong.error
    assert (wrong.number, wrong.id) == (2, 2)
    assert (before.error, after.error) == ("", "")


def test_a_wrong_line_keeps_its_id_and_lists_every_problem(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, '{"id": "mine", "prompt": 5, "top_p": 2, "max_tokns": 1}')

    assert line.id == "mine"
    assert all(part in line.error for part in ("prompt must", "top_p=2", "'max_tokns'"))


def test_ten_thousand_stop_texts_are_allowed(tmp_path: Path) -> None:
    stops = [f"stop {number}" for number in range(10_000)]

    (line,) = lines_of(tmp_path, json.dumps({"prompt": "x", "stop": stops}))

    assert len(line.params.stop) == 10_000


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, b'\xef\xbb\xbf{"prompt": "x"}')

    assert line.error == ""


def test_a_file_without_prompts_or_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no prompts"):
        lines_of(tmp_path, "", "  ")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_prompts(tmp_path / "none", Defaults())


LINES = tuple(PromptLine(number=number, id=f"id {number}") for number in range(1, 6))


def ended(text: str, **fields: object) -> RequestOutput:
    completion = CompletionOutput(index=0, text=text, token_ids=(1, 2), finish_reason="stop", **fields)
    return RequestOutput(request_id="0", prompt=None, prompt_token_ids=(7,), outputs=(completion,), finished=True)


def read(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_results_are_there_as_they_come_and_in_order_in_the_end(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"

    with ResultsFile(file) as results:
        results.add(result_of(LINES[2], ended("c")))
        results.add(failure_of(LINES[0], "too long"))
        seen = read(file)
        results.add(result_of(LINES[1], ended("b")))

    assert [result["line"] for result in seen] == [3, 1]
    assert [result["line"] for result in read(file)] == [1, 2, 3]
    assert read(file)[0] == {"id": "id 1", "line": 1, "error": "too long"}
    assert read(file)[1] == {
        "id": "id 2",
        "line": 2,
        "text": "b",
        "token_ids": [1, 2],
        "finish_reason": "stop",
        "stop_reason": None,
        "num_prompt_tokens": 1,
    }
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupt_keeps_what_is_finished_in_order(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"

    def run_until_interrupted() -> None:
        with ResultsFile(file) as results:
            results.add(result_of(LINES[3], ended("d")))
            results.add(result_of(LINES[1], ended("b")))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted()

    assert [result["line"] for result in read(file)] == [2, 4]


def test_resuming_keeps_results_tries_errors_again_and_drops_half_a_line(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    with ResultsFile(file) as results:
        results.add(result_of(LINES[0], ended("a")))
        results.add(failure_of(LINES[1], "no memory"))
        results.add(result_of(LINES[3], ended("d")))
    with file.open("a") as stream:
        stream.write('{"id": "id 5", "li')

    results = ResultsFile(file, resume=True)
    assert results.done == {1, 4}
    with results:
        results.add(result_of(LINES[1], ended("b")))
        results.add(result_of(LINES[4], ended("e")))

    assert [(result["line"], result.get("text")) for result in read(file)] == [(1, "a"), (2, "b"), (4, "d"), (5, "e")]


def test_resuming_without_results_begins(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "new", resume=True) as results:
        assert results.done == frozenset()
        results.add(failure_of(LINES[0], "x"))
    with ResultsFile(tmp_path / "new", resume=True) as results:
        assert results.done == frozenset()

    assert (tmp_path / "new").read_text() == ""


@pytest.mark.parametrize("text", ["prompts of mine\n", '{"text": "a"}\n', "[1]\n"])
def test_resuming_refuses_a_file_that_holds_something_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)

    with pytest.raises(ConfigError, match="so this is no file of results"):
        ResultsFile(tmp_path / "other", resume=True)

    assert (tmp_path / "other").read_text() == text


def test_half_a_surrogate_pair_in_an_id_is_written_as_it_came(tmp_path: Path) -> None:
    line = PromptLine(number=1, id="\ud800")

    with ResultsFile(tmp_path / "r") as results:
        results.add(result_of(line, ended("\u4f60")))

    assert read(tmp_path / "r")[0]["id"] == "\ud800"
    assert "\u4f60" in (tmp_path / "r").read_text()


def test_several_completions_and_logprobs_are_reported() -> None:
    at = {5: Logprob(-0.5, 1, "a"), 6: Logprob(-1.5, 2, "b")}
    completion = ended("a", logprobs=(at,)).outputs[0]
    output = RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=(7, 8),
        outputs=(completion, completion),
        prompt_logprobs=(None, at),
        finished=True,
    )

    result = result_of(LINES[0], output)

    shown = [
        {"token_id": 5, "token": "a", "logprob": -0.5, "rank": 1},
        {"token_id": 6, "token": "b", "logprob": -1.5, "rank": 2},
    ]
    assert [one["logprobs"] for one in result["completions"]] == [[shown], [shown]]
    assert result["prompt_logprobs"] == [None, shown]


def test_a_request_that_failed_has_an_error_and_no_text() -> None:
    assert result_of(LINES[0], ended("half", error="not finite")) == failure_of(LINES[0], "not finite")
