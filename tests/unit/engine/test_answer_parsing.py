"""Answers in the chat format are read by ``deepseek-recipe`` as its prompts were written: wherever a stream is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import deepseek_recipe as recipe
import pytest

DSML = "\uff5cDSML\uff5c"
CALL = (
    f'\n\n<{DSML} calls>\n<{DSML} invoke name="run">\n<{DSML} parameter name="command" string="true">ls 2>&1'
    f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "d",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
LENGTH, STOP = recipe.InferenceFinishReason.Length, recipe.InferenceFinishReason.Stop


def parse(pieces: Sequence[str], finish: Any = STOP, **body: Any) -> dict[str, Any]:
    """What the deltas of a streamed answer join to."""
    request = recipe.ChatCompletionRequest(
        {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "q"}], "stream": True, **body}
    ).convert(recipe.ConversionOptions())
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "id", "m")
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    chunks: list[recipe.ChatCompletionChunk] = []
    for item in (
        recipe.InferenceChunk.ready(),
        *map(recipe.InferenceChunk.text, pieces),
        recipe.InferenceChunk.finish(finish),
    ):
        if not processor.finished:  # a stop text has ended it
            chunks += processor.push(item)
    return joined(json.loads(chunk.to_json()) for chunk in (*chunks, *processor.finish()))


def joined(chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Content, reasoning, calls and the reason of the end."""
    whole: dict[str, Any] = {"content": "", "reasoning": "", "name": "", "arguments": "", "finish": None}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice["delta"]
        whole["content"] += delta.get("content") or ""
        whole["reasoning"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            whole["name"] += call["function"].get("name") or ""
            whole["arguments"] += call["function"].get("arguments") or ""
        whole["finish"] = choice.get("finish_reason") or whole["finish"]
    return whole


@pytest.mark.parametrize("before", ["", "I look."])
def test_a_call_is_the_same_wherever_the_stream_is_cut(before: str) -> None:
    """Case A8 of the bug reports: no part of the closing mark sticks to the argument."""
    text, body = before + CALL, {"tools": [TOOL], "thinking": {"type": "disabled"}}
    whole = parse([text], **body)

    assert json.loads(whole["arguments"]) == {"command": "ls 2>&1"}
    assert (whole["name"], whole["finish"]) == ("run", "tool_calls")
    assert "DSML" not in whole["content"] + whole["arguments"]
    for cut in range(1, len(text)):
        assert parse([text[:cut], text[cut:]], **body) == whole
    assert parse(list(text), **body) == whole


def test_a_stop_text_inside_the_thought_does_not_end_the_answer() -> None:
    """Case A10 of the bug reports, as the format's own parser sees it."""
    body = {"thinking": {"type": "enabled"}, "stop": ["Question:"]}

    found = parse(["Question: 6 times 7?", "</think>", "42 Quest", "ion: more"], **body)

    assert (found["reasoning"], found["content"]) == ("Question: 6 times 7?", "42 ")
    assert found["finish"] == "stop"


def test_a_thought_that_uses_up_the_tokens_is_reasoning_and_ends_by_length() -> None:
    """Case A11 of the bug reports."""
    found = parse(["I begin to"], LENGTH, thinking={"type": "enabled"})

    assert (found["reasoning"], found["content"], found["finish"]) == ("I begin to", "", "length")
